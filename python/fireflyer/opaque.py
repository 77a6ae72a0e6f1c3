"""Keeps dynamo, the front end of ``torch.compile``, out of this package.

c10d calls our methods from C++, also while a compiled function runs. Dynamo would trace them there, and fail at what it does
not know. `torch.compiler.disable` imports dynamo, which takes seconds, so this does the same by the functions in C that it
is made of: they are there without the import.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)


def opaque(function: Function) -> Function:
    """The same function, which dynamo traces neither by itself nor as a part of another one."""
    exchange = eval_frame.set_eval_frame

    def untraced(*arguments: Any, **named: Any) -> Any:
        before = exchange(None)
        try:
            return function(*arguments, **named)
        finally:
            exchange(before)

    _skip(untraced.__code__)
    whole: Any = functools.update_wrapper(untraced, function)
    # As dynamo marks what it may not trace into.
    whole._torchdynamo_disable = True
    return whole


def methods(kind: Class) -> Class:
    """A class whose own methods are opaque; a decorator."""
    for name, value in list(vars(kind).items()):
        if isinstance(value, types.FunctionType) and not name.startswith("__"):
            setattr(kind, name, opaque(value))
    return kind


def _skip(code: types.CodeType) -> None:
    """Has dynamo run this code as it is."""
    if hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(code)
        return
    # Newer versions of PyTorch.
    skip, default = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
    eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, default))
