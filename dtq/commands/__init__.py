"""The commands of `flask dtq`, one module for each noun, and what keeps `flask dtq up` running."""
