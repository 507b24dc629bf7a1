"""The reliable message queue: beside the task engine, for programs that own their execution and results."""

from dtq.mq.message import Message
from dtq.mq.model import Consumer, Put, QueueStats, Stored, TopicStats
from dtq.mq.queue import MessageQueue
from dtq.mq.subscription import Subscription

__all__ = ["Consumer", "Message", "MessageQueue", "Put", "QueueStats", "Stored", "Subscription", "TopicStats"]
