"""What can be wrong with a checkpoint."""


class CheckpointError(ValueError):
  """A checkpoint could not be written, or must not be loaded."""


class IncompleteError(CheckpointError):
  """The directory has no manifest: its save never finished."""


class DamagedError(CheckpointError):
  """The directory is not what its manifest says."""


class UnsignedError(DamagedError):
  """The manifest is not signed with the key of this reader."""


class CopyDamagedError(DamagedError):
  """A table of a serving copy is not what its checksums say."""


class UnrestorableError(CheckpointError):
  """A step whose files are as they were written, and which does not load."""
