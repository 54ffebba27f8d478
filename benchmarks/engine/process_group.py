"""The end of a run of many processes."""

import gc

from torch import distributed


def leave_process_group() -> None:
    """Leaves the group, once the caller has let go of all modules that were wrapped for it.

    They hold on to the group in cycles; were these left to the interpreter's end, the group's threads
    would find no interpreter to finish in.
    """
    gc.collect()
    distributed.destroy_process_group()
