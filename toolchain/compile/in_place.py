"""States that a step writes in place: a cache keeps its memory, and only what is new in it is written.

A decoder's step returns its cache with some rows replaced, which copies the whole cache otherwise. The old cache and
the new one may be the same memory if nothing but these writes reads the old one: then no order of the kernels can read
a row after it was replaced. A cache that something else reads keeps two buffers, which change places at each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

from toolchain.backends.graph.values import name_of, shape_of
from toolchain.compile import cache_writes, prepare
from toolchain.compile.cache_writes import Write
from toolchain.compile.request import BuildRequest
from toolchain.models.importer import ImportedModel
from toolchain.states import StatePair

_MAIN = "main"
_INPLACE = "relax.call_tir_inplace"


@dataclass(frozen=True)
class InPlace:
    """A module whose caches are written in place where that is possible.

    Attributes:
        module: The module.
        kept: Why other states that are written like a cache have two buffers, one line for each.
    """

    module: tvm.IRModule
    kept: tuple[str, ...] = ()


def prepared_module(imported: ImportedModel, request: BuildRequest) -> tvm.IRModule:
    """Return a model's module as a backend lowers it: rescaled, and with caches that are written in place on a CPU.

    Args:
        imported: The model of the request.
        request: The board and the inputs; a line is reported about each change.

    Raises:
        InputError: The inputs do not fit the model.
    """
    rescaled = prepare.rescale_for_half(imported, request)
    if request.board.backend != "cpu":
        return rescaled
    written = write_in_place(imported, rescaled)
    for line in written.kept:
        request.progress(line)
    return written.module


def write_in_place(imported: ImportedModel, module: tvm.IRModule) -> InPlace:
    """Have the states of a model written in place.

    Args:
        imported: The model, which has the names of the states.
        module: Its module as the importer made it, or with its values rescaled.
    """
    pairs = imported.source.states
    if not pairs or not all(isinstance(block, relax.DataflowBlock) for block in module[_MAIN].body.blocks):
        return InPlace(module)
    # The importer may write an operation once for each of its readers, which would be several writes.
    network = _Network(relax.transform.EliminateCommonSubexpr()(module))
    kept = []
    for pair in pairs:
        cache, result = _variables(imported, network.main, network.results, pair)
        chain = network.chain(cache, result)
        reason = network.obstacle(cache, result, chain) if chain else ""
        if reason:
            kept.append(f"state {pair} has two buffers: {reason}")
        elif chain:
            network.replace(cache, chain)
    return InPlace(network.rewritten() or module, tuple(kept))


def marked(imported: ImportedModel, module: tvm.IRModule) -> tuple[StatePair, ...]:
    """Return the states of a model, each with whether its finished module writes it in place.

    Args:
        imported: The model.
        module: Its scheduled kernels, as they are compiled.
    """
    if not imported.source.states:
        return ()
    network = _Network(module)
    return tuple(
        replace(pair, in_place=network.is_in_place(*_variables(imported, network.main, network.results, pair)))
        for pair in imported.source.states
    )


def _variables(imported: ImportedModel, main: Any, results: Sequence[Any], pair: StatePair) -> tuple[Any, Any]:
    """Return the parameter and the result that a pair names."""
    inputs = [spec.name for spec in imported.source.inputs]
    outputs = [spec.name for spec in imported.outputs]
    return main.params[inputs.index(pair.input)], results[outputs.index(pair.output)]


@dataclass(frozen=True)
class _Link:
    """A write on the way from a cache to a result.

    Attributes:
        before: The cache that it changes.
        source: The same, transposed, which the operation reads; `before` itself if it is not transposed.
        written: The operation's result.
        after: The same, transposed back.
        axes: The transposition.
        write: The operation.
    """

    before: Any
    source: Any
    written: Any
    after: Any
    axes: tuple[int, ...]
    write: Write


class _Network:
    """The function `main` of a module, and what is to be different in it."""

    def __init__(self, module: tvm.IRModule) -> None:
        self.main = module[_MAIN]
        self._module = module
        self._builder = relax.BlockBuilder(module)
        bindings = [binding for block in self.main.body.blocks for binding in block.bindings]
        self._calls = {binding.var: binding.value for binding in bindings}
        result = self._resolved(self.main.body.body)
        fields = self._calls.get(result, result)
        results = fields.fields if isinstance(fields, relax.Tuple) else [result]
        self.results = [self._resolved(field) for field in results]
        self._readers = Counter[Any]()
        for binding in bindings:
            if not isinstance(binding.value, relax.Var) and not binding.value.same_as(fields):
                self._readers.update(map(self._resolved, _read(binding.value)))
        self._readers.update(variable for variable in self.results if isinstance(variable, relax.Var))
        self._replaced: dict[Any, list[Any]] = {}  # bindings by the variable of the one whose place they take

    def _resolved(self, value: Any) -> Any:
        """Return the variable that another name stands for."""
        while isinstance(value, relax.Var) and isinstance(self._calls.get(value), relax.Var):
            value = self._calls[value]
        return value

    def _call(self, variable: Any) -> Any:
        return self._calls.get(variable) if isinstance(variable, relax.Var) else None

    def chain(self, cache: Any, result: Any) -> list[_Link]:
        """Return the writes that make a result of a cache, the first one first; empty if something else makes it."""
        for link in self._links(result):
            if link.before.same_as(cache):
                return [link]
            if before := self.chain(cache, link.before):
                return [*before, link]
        return []

    def _links(self, after: Any) -> list[_Link]:
        """Return the ways in which a tensor may be another one with some elements replaced."""
        written, back = self._transposed(after)
        links = []
        for write in cache_writes.recognized(self._call(written), self._module):
            source = self._resolved(write.cache)
            before, axes = self._transposed(source)
            rank = len(shape_of(after.ty) or ())
            there, home = axes or tuple(range(rank)), back or tuple(range(rank))
            if shape_of(before.ty) == shape_of(after.ty) and [there[axis] for axis in home] == list(range(rank)):
                links.append(_Link(before, source, written, after, there, write))
        return links

    def _transposed(self, variable: Any) -> tuple[Any, tuple[int, ...]]:
        """Return what a variable is the transposition of, and its axes; itself and no axes for any other variable."""
        call = self._call(variable)
        if name_of(call) != "permute_dims":
            return variable, ()
        rank = len(shape_of(variable.ty) or ())
        axes = call.attrs.axes
        return self._resolved(call.args[0]), tuple(int(axis) for axis in axes or reversed(range(rank)))

    def obstacle(self, cache: Any, result: Any, chain: Sequence[_Link]) -> str:
        """Return why a cache cannot be the memory of its next value; empty if it can."""
        if sum(other.same_as(result) for other in self.results) > 1:
            return "its next value is another output as well"
        for link in chain:
            for variable in {link.before, link.source}:
                if self._readers[variable] > 1:
                    is_cache = variable.same_as(cache)
                    what = "its value before the step" if is_cache else "what one of several writes has made of it"
                    return f"{what} has other readers than the write"
        return ""

    def replace(self, cache: Any, chain: Sequence[_Link]) -> None:
        """Have the writes of a chain change the cache."""
        current = cache
        for link in chain:
            kind = relax.TensorType(shape_of(current.ty), str(current.ty.dtype))
            kernel = self._builder.add_func(cache_writes.kernel(link.write, kind, link.axes), "write_cache")
            arguments = relax.Tuple([current, *link.write.arguments])
            call = relax.op.call_tir_inplace(kernel, arguments, 0, kind)
            if link.after.same_as(link.written):
                self._replaced[link.written] = [relax.VarBinding(link.written, call)]
                current = link.written
                continue
            # Others may read the cache as the operation had it.
            current = relax.DataflowVar(f"{link.written.name}_in_place", kind, link.written.span)
            transposed = relax.op.permute_dims(current, link.axes)
            self._replaced[link.written] = [
                relax.VarBinding(current, call),
                relax.VarBinding(link.written, self._builder.normalize(transposed)),
            ]
            self._replaced[link.after] = [relax.VarBinding(link.after, current)]
            current = link.after

    def rewritten(self) -> tvm.IRModule | None:
        """Return the module with its replaced bindings; None if there are none."""
        if not self._replaced:
            return None
        module = self._builder.get()
        blocks = [
            relax.DataflowBlock(
                [new for binding in block.bindings for new in self._replaced.get(binding.var, [binding])]
            )
            for block in self.main.body.blocks
        ]
        main = self.main
        body = relax.SeqExpr(blocks, main.body.body)
        main = relax.analysis.remove_all_unused(
            relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        )
        functions = {**dict(module.functions_items()), module.get_global_var(_MAIN): main}
        result: tvm.IRModule = relax.transform.Normalize()(tvm.IRModule(functions, module.attrs, module.global_infos))
        return result

    def is_in_place(self, cache: Any, result: Any) -> bool:
        """Whether a finished network writes its result over a cache, which nothing else reads."""
        current = result
        while not current.same_as(cache):
            call = self._call(current)
            if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != _INPLACE:
                return False
            if cache_writes.WRITES not in (self._module[call.args[0]].attrs or {}):
                return False
            current = self._resolved(call.args[1].fields[0])
            if self._readers[current] > 1:
                raise ValueError(f"{current} is read and written in place")
        return not result.same_as(cache)


def _read(value: Any) -> list[Any]:
    """Return the variables that an expression reads, each as often as it stands there."""
    read: list[Any] = []

    def note(node: Any) -> None:
        if isinstance(node, relax.Var):
            read.append(node)

    relax.analysis.post_order_visit(value, note)
    return read
