"""Mutations that change nothing that anybody could observe, and why.

(file, lines before, lines after) -> the argument, one sentence. The lines are
those of `Mutation.diff`, without their indent. What merely is not tested does
not belong here. A test looks whether the lines before still stand in the file.
"""

EQUIVALENT: dict[tuple[str, str, str], str] = {}
