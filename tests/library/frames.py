"""What stands for DataFrames of packages that are not installed."""

import numpy as np


class Series:
  """A column that gives itself as an array, as pandas' and polars' do."""

  def __init__(self, values, dtype=''):
    self._values, self.dtype = values, dtype

  def __iter__(self):
    return iter(self._values)

  def to_numpy(self):
    if 'Int' in self.dtype:  # a null makes floats of whole numbers
      return np.array([np.nan if x is None else x for x in self._values])
    if self.dtype == 'Struct':  # polars makes a table of them
      return np.array([list(x.values()) for x in self._values])
    return self._values


class Frame:
  """Columns by name, as DataFrames have them."""

  def __init__(self, columns):
    self._columns = {
      # Text and lists are of type object there.
      name: np.fromiter(list(x), object)
      if isinstance(x, list) or np.asarray(x).dtype.kind == 'U'
      else x
      for name, x in columns.items()
    }
    self.columns = list(columns)

  def __getitem__(self, name):
    return Series(self._columns[name])


class Table(Frame):
  """Columns as pyarrow has them: `columns` are the values."""

  def __init__(self, columns):
    super().__init__(columns)
    self.column_names = self.columns
    self.columns = [self[name] for name in self.column_names]
