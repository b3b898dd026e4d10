"""corelane: trace a model once, pin one server to every core, serve it at static URLs."""

__version__ = "0.1.0"
