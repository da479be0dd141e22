"""What is raised where a config cannot be used."""


class ConfigError(ValueError):
  """A configuration that cannot be used; the message says which key and why."""


class UnknownVariantError(ConfigError):
  """A config file has no such variant.

  Attributes:
    known: the variants that it has.
  """

  def __init__(self, name: str, known, hint: str = ''):
    super().__init__(
      f'unknown variant {name!r}; this config knows {", ".join(known)}{hint}'
    )
    self.known = tuple(known)
