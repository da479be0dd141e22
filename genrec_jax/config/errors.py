"""What is raised where a config cannot be used."""


class ConfigError(ValueError):
  """A configuration that cannot be used; the message says which key and why."""
