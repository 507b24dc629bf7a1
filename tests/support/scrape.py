"""What an answer of `/metrics` says."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


class Scrape:
    """The samples of one answer, by name and labels. Fails for one that is told twice."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                named = self.samples.setdefault(sample.name, {})
                labels = frozenset(sample.labels.items())
                assert labels not in named, f"{sample.name} {sample.labels} is told twice"
                named[labels] = sample.value

    def one(self, name: str, **labels: str) -> float:
        """The value of one sample; 0 where it is not told."""
        return self.samples.get(name, {}).get(frozenset(labels.items()), 0.0)

    def sum(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        return sum(value for key, value in self.samples.get(name, {}).items() if labels.items() <= dict(key).items())
