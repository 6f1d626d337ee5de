"""Runs a release of this toolchain in Python, by way of libedge_model; it needs numpy and nothing else.

    with edge_model.Model("~/.local/share/edge-toolchain/current", threads=edge_model.ALL_CPUS) as model:
        outputs = model.run({"data": array})

A model with a state keeps it between steps: `model.step({"data": frame})`, and `model.reset()` begins anew.
A release with several variants runs the one that has the shapes of the arrays.

A model is used by one thread at a time. A process that forks must open its models after that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor
    from typing import Self

ABI = 1
ALL_CPUS = NO_SPIN = -1
_NAMES = ("libedge_model.so.1", "libedge_model.so")
FORMATS = ("rgb", "bgr", "rgba", "gray", "nv12", "yuyv")  # numbers from 1, as in edge_model.h
SOUNDS = {"int16": 2, "float32": 3}  # formats of samples, by their dtype; 1 is a WAV file
_FILES = {7: b"\xff\xd8\xff", 8: b"\x89PNG\r\n\x1a\n"}  # how JPEG and PNG files begin, by their formats
_CHANNELS = {"rgb": (3,), "bgr": (3,), "rgba": (4,), "gray": ()}
# numpy has no name for these bits.
_STORED = {"bfloat16": "uint16"}


class EdgeError(Exception):
    """What the library reports.

    Attributes:
        code: 2 the call is wrong, 3 the release is damaged, 4 it does not fit this device or library, 5 it failed,
            7 the device takes signed releases only, and not this one.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


_Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)
_Execute = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _Task, ctypes.c_void_p, ctypes.c_int32)
_TYPES: dict[str, Any] = {"size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64}
_TYPES |= {f"{name}*": ctypes.POINTER(kind) for name, kind in _TYPES.items()}
_TYPES |= {"float": ctypes.c_float, "char*": ctypes.c_char_p, "void*": ctypes.c_void_p, "edge_executor": _Execute}
_TYPES |= {"edge_point*": ctypes.POINTER(ctypes.c_float * 3)}  # x, y and a score


def _fields(declarations: str) -> list[tuple[str, Any]]:
    """Return the fields of a struct, which is declared as in edge_model.h."""
    lines = [line.strip().partition(" ") for line in declarations.split(";")]
    return [(name, _TYPES[kind]) for kind, _, names in lines for name in names.split(", ")]


def _struct(declarations: str) -> Any:
    """Return a struct of edge_model.h."""
    return type("Struct", (ctypes.Structure,), {"_fields_": _fields(declarations)})


_Options = _struct(
    "size_t size; int32_t threads, pin, spin_us; char* trust; int32_t priority, cpu_count; int32_t* cpus; "
    "edge_executor executor; void* context; int32_t own_threads"
)


class _Tensor(ctypes.Structure):
    _fields_ = _fields(
        "size_t size; char* name, dtype; int32_t rank; int64_t* shape; void* data; size_t bytes; "
        "int32_t bound_axis; int64_t valid; int32_t state"
    )

    def array(self) -> np.ndarray[Any, Any]:
        """Return what it holds, without a copy."""
        name = self.dtype.decode()
        dtype = np.dtype(_STORED.get(name, name))
        if self.bytes == 0:
            return np.empty(self.shape[: self.rank], dtype)
        memory = (ctypes.c_char * self.bytes).from_address(self.data)
        return np.frombuffer(memory, dtype).reshape(self.shape[: self.rank])


_Shape = _struct("int32_t input, rank; int64_t* sizes")
_Image = _struct(
    "size_t size; int32_t format, width, height; void* data; size_t bytes, stride; void* chroma; "
    "size_t chroma_bytes, chroma_stride"
)
_Audio = _struct("size_t size; int32_t format, rate, channels; void* data; size_t bytes")
_Object = _struct(
    "int32_t number; float score, left, top, right, bottom; char* label; int32_t point_count; edge_point* points"
)
_Crop = _struct("void* box; int32_t count; void* objects; char* text")
_Crops = _struct("size_t size; int32_t count; size_t crop_size, object_size; void* crops; int32_t boxes")
_Mask = _struct("size_t size; int32_t left, top, width, height; void* data; size_t bytes, stride")


class _Objects(ctypes.Structure):
    _fields_ = _fields("size_t size; int32_t count; size_t object_size; void* objects; char* text")

    def read(self) -> list[Object]:
        """Copy the objects from the model's memory."""
        has_points = self.object_size >= ctypes.sizeof(_Object)  # not in libraries from before there were any
        found = []
        for number in range(self.count):
            item = _Object.from_address(self.objects + number * self.object_size)
            points = tuple(tuple(item.points[i]) for i in range(item.point_count)) if has_points else ()
            sides = item.left, item.top, item.right, item.bottom
            found.append(Object(item.number, item.label.decode(), item.score, *sides, points))
        return found


class Object(NamedTuple):
    """A class of a picture, or a box in its pixels; a class without a box has zeros.

    Of a sound, it is a class of a window or a label, and lies from second `left` to second `right`.
    """

    number: int
    label: str
    score: float
    left: float
    top: float
    right: float
    bottom: float
    points: tuple[tuple[float, ...], ...] = ()  # key points: x, y, and how sure it is that they can be seen


class Crop(NamedTuple):
    """A box in a picture, and what a second model found in that part of it, in pixels of the whole picture."""

    box: Object
    objects: list[Object]
    text: str  # empty where the second release reads no text


class Mask(NamedTuple):
    """The pixels of an object: uint8 of (height, width), 1 where it is, at `left`, `top` in the picture."""

    left: int
    top: int
    pixels: np.ndarray[Any, Any]


class Heard(NamedTuple):
    """What was heard in a sound."""

    objects: list[Object]
    text: str  # empty where the release reads no text


class Window(NamedTuple):
    """What was heard in a window of a stream, which begins `number` times the hop after the stream."""

    number: int
    objects: list[Object]


_Take = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_Objects))


_Release = _struct("size_t size; char* name, digest, folder; int64_t sequence; char* weights")


def _library(path: str | os.PathLike[str] | None) -> ctypes.CDLL:
    """Open the library: at a path, beside this file or in ../lib, or where the system has it."""
    here = Path(__file__).resolve().parent
    beside = [folder / name for folder in (here, here.parent / "lib") for name in _NAMES]
    candidates = [os.fspath(path)] if path else [str(one) for one in beside if one.exists()] or list(_NAMES[:1])
    library = ctypes.CDLL(candidates[0])
    if library.edge_abi() != ABI:
        raise EdgeError(4, f"{candidates[0]} has version {library.edge_abi()} of the interface, not {ABI}")
    library.edge_error.restype = ctypes.c_char_p
    library.edge_close.restype = None
    if hasattr(library, "edge_variants"):  # not in libraries from before there were any
        library.edge_variant.restype = ctypes.c_char_p
    return library


class Workers(NamedTuple):
    """How a model's threads beside the calling one work.

    Attributes:
        spin_us: How long an idle one looks for work, in microseconds; 0: 1000; NO_SPIN: not at all.
        priority: 0 as the calling thread, or 1 to 99 of SCHED_FIFO.
        cpus: The CPUs that they stay on; with `pin` the first one is left to the calling thread.
        executor: Whose threads compute, such as a ThreadPoolExecutor, instead of threads of the model's own; `threads`
            says how many of them. The thread that runs the model must not be one of them.
        own: Whether no other model of the process uses them. Otherwise those with the same options do.
    """

    spin_us: int = 0
    priority: int = 0
    cpus: Sequence[int] = ()
    executor: Executor | None = None
    own: bool = False


def _executor(executor: Executor | None) -> Any:
    """Return the function by which the library runs its tasks on the threads of an executor."""
    if executor is None:
        return _Execute()

    def execute(_context: Any, task: Any, data: Any, count: int) -> None:
        others: list[Any] = []
        # After its shutdown, the calling thread computes everything.
        with contextlib.suppress(RuntimeError):
            others.extend(executor.submit(task, data, number) for number in range(1, count))
        task(data, 0)
        # One that has not begun has nothing left to do, and would wait for a thread that others use.
        for other in others:
            if not other.cancel():
                other.result()

    return _Execute(execute)


class Model:
    """A release that is open.

    Args:
        release: A folder, or a link to one, such as `current` of a device's store.
        threads: With the calling one; 0: that one alone; ALL_CPUS: one for each CPU.
        pin: Whether each of the others stays on a CPU of its own.
        workers: How the others work.
        library: The library's path, where it is neither beside this file nor in ../lib.
        trust: Folder that says whose signed releases are opened; /etc/edge-toolchain by default. Without a file
            `trusted` in it, any release is.

    Raises:
        EdgeError: The release cannot be opened.
        OSError: There is no library.
    """

    def __init__(
        self,
        release: str | os.PathLike[str],
        *,
        threads: int = 0,
        pin: bool = False,
        workers: Workers = Workers(),  # noqa: B008 - it does not change
        library: str | os.PathLike[str] | None = None,
        trust: str | os.PathLike[str] | None = None,
    ) -> None:
        self.text = ""  # what the last picture or sound says, where the release reads a text
        self._model = ctypes.c_void_p()
        self._functions = _library(library)
        whom = os.fsencode(trust) if trust else None
        options = _Options(ctypes.sizeof(_Options), threads, int(pin), workers.spin_us, whom, workers.priority)
        if workers.cpus:
            options.cpu_count = len(workers.cpus)
            options.cpus = (ctypes.c_int32 * len(workers.cpus))(*workers.cpus)
        options.executor = self._execute = _executor(workers.executor)  # called as long as the model is open
        options.own_threads = int(workers.own)
        name = os.fsencode(Path(release).expanduser())
        self._check(self._functions.edge_open(name, ctypes.byref(options), ctypes.byref(self._model)))

    @property
    def inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """The inputs' own memory, by name: what is written there is what the next run computes with.

        While a run works, no thread may read or write it: a GPU may have it by then. After a run that lost its
        device this raises EdgeError, and arrays from before must not be used.
        """
        return {name: tensor.array() for name, tensor in self._tensors("input")}

    @property
    def variants(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """The shapes of the inputs of each variant, by their names; empty for a release with one set of shapes."""
        self._opened()
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        for number in range(self._count_variants()):
            of_variant = shapes.setdefault(self._functions.edge_variant(self._model, number).decode(), {})
            for place in range(self._functions.edge_inputs(self._model)):
                tensor = _Tensor(ctypes.sizeof(_Tensor), state=-1)
                self._call("edge_variant_input", number, place, ctypes.byref(tensor))
                of_variant[tensor.name.decode()] = tuple(tensor.shape[: tensor.rank])
        return shapes

    @property
    def variant(self) -> str:
        """The name of the selected variant; empty for a release with one set of shapes."""
        self._opened()
        return str(self._functions.edge_variant(self._model, -1), "utf-8") if self._count_variants() else ""

    def select(self, variant: str) -> None:
        """Select a variant by its name; `inputs` and `outputs` are its own then. An EdgeError if there is none."""
        self._call("edge_select", variant.encode())

    @property
    def states(self) -> dict[str, str]:
        """Outputs that `step` keeps for the next step, by the names of the inputs that they become."""
        outputs = [name for name, _ in self._tensors("output")]
        return {name: outputs[tensor.state] for name, tensor in self._tensors("input") if tensor.state >= 0}

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self._release().name, "utf-8")

    @property
    def digest(self) -> str:
        """The release's digest; empty where it does not lie in a device's store."""
        return str(self._release().digest, "utf-8")

    @property
    def sequence(self) -> int:
        """The number that the release's signers gave it; 0 where nobody asked for signatures."""
        return int(self._release().sequence)

    @property
    def weights(self) -> str:
        """Where the weights are, as `edge_release.weights` of edge_model.h; empty with an older library."""
        return str(self._release().weights or b"", "utf-8")

    def changed(self) -> bool:
        """Whether the path leads to another release by now."""
        self._opened()
        return bool(self._functions.edge_changed(self._model))

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Compute the outputs, by name; those whose size depends on the data are cut to it.

        A state is passed and returned as any other input and output: what `step` keeps is not used. Of a release with
        several variants, the one that has the shapes of the arrays is selected.

        Args:
            inputs: Arrays by name, each of its input's shape and of a dtype that fits it without loss.

        Raises:
            EdgeError: The model failed, or was closed.
            ValueError: An input is missing, unknown, or of another shape or type.
        """
        if self._count_variants():
            self._select_for(inputs)
        self._write(inputs, self.inputs)
        self._call("edge_run")
        return self.outputs()

    def step(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Compute the outputs but the state, which stays in the model as the input of the next step.

        Args:
            inputs: Arrays by name, without the state.

        Raises:
            EdgeError: The model failed, and its state is as before; or it was closed. A state that is written in place
                is unusable after a step that failed: reset it, or load a saved one.
            ValueError: An input is missing, unknown, or of another shape or type.
        """
        states = self.states
        self._write(inputs, {name: place for name, place in self.inputs.items() if name not in states})
        self._call("edge_step")
        return {name: _cut(tensor) for name, tensor in self._tensors("output") if tensor.state < 0}

    def reset(self) -> None:
        """Make the state zeros, as it is at first."""
        self._call("edge_reset")

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, as a whole or not at all; an EdgeError if it cannot be written."""
        self._call("edge_state_save", os.fsencode(path))

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Take the state from a file that `save_state` of the same release has written, or raise an EdgeError."""
        self._call("edge_state_load", os.fsencode(path))

    def run_image(
        self,
        pixels: bytes | np.ndarray[Any, Any],
        format: str = "rgb",  # noqa: A002 - the word of edge_model.h
        size: tuple[int, int] | None = None,
    ) -> list[Object]:
        """Find the objects of a picture by the steps of the release, the best first.

        Args:
            pixels: The bytes of a JPEG or PNG file; or uint8: (height, width, channels), (height, width) for gray, or
                any shape with a size.
            format: One of `FORMATS`.
            size: Width and height in pixels; nv12 and yuyv need it.

        A release that reads a text has an object for each of its labels, and `text` has the whole.

        Raises:
            EdgeError: The picture or the release does not fit, the device cannot decode the file, or the model failed.
            ValueError: The array has another shape or type.
        """
        return self._find("edge_run_image", _picture(pixels, format, size))

    def run_crops(
        self,
        second: Model,
        pixels: bytes | np.ndarray[Any, Any],
        format: str = "rgb",  # noqa: A002
        size: tuple[int, int] | None = None,
        most: int = 1000,
    ) -> list[Crop]:
        """Find boxes as `run_image` does, and run a second model on that part of the picture, for each of the best.

        Raises:
            EdgeError, ValueError: As of `run_image`; an EdgeError names the model that failed.
        """
        image, crops = _picture(pixels, format, size), _Crops(ctypes.sizeof(_Crops))
        self._call("edge_run_crops", second._model, ctypes.byref(image), ctypes.c_int32(most), ctypes.byref(crops))

        def read(count: int, objects: int) -> list[Object]:
            return _Objects(ctypes.sizeof(_Objects), count, crops.object_size, objects).read()

        parts = [_Crop.from_address(crops.crops + number * crops.crop_size) for number in range(crops.count)]
        return [Crop(read(1, part.box)[0], read(part.count, part.objects), part.text.decode()) for part in parts]

    def mask(self, number: int) -> Mask:
        """Return the mask of an object of the last picture, by its number from 0, before the model runs again.

        Raises:
            EdgeError: There is no such object, or the release has no masks.
        """
        mask = _Mask(ctypes.sizeof(_Mask))
        self._call("edge_object_mask", number, ctypes.byref(mask))
        pixels = np.zeros((mask.height, mask.width), np.uint8)
        mask.data, mask.bytes = pixels.ctypes.data, pixels.nbytes
        self._call("edge_object_mask", number, ctypes.byref(mask))
        return Mask(mask.left, mask.top, pixels)

    def decode_image(self, file: bytes) -> np.ndarray[Any, Any]:
        """Decode a JPEG or PNG file as `run_image` does; returns its RGB pixels, (height, width, 3).

        Raises:
            EdgeError: It is damaged or of another kind, or the device has no library for it.
        """
        image, pixels = _file(file), _Image(ctypes.sizeof(_Image))
        self._call("edge_decode_image", ctypes.byref(image), ctypes.byref(pixels))
        copy = ctypes.string_at(pixels.data, pixels.bytes)
        return np.frombuffer(copy, np.uint8).reshape(pixels.height, pixels.width, 3)

    def run_audio(self, sound: bytes | np.ndarray[Any, Any], rate: int = 0) -> Heard:
        """Find the classes or the text of a sound by the steps of the release.

        Args:
            sound: The bytes of a WAV file; or samples of int16 or float32, of shape (samples,) or (samples, channels).
            rate: Samples of a second; a WAV file says it itself.

        Raises:
            EdgeError: The sound or the release does not fit, or the model failed.
            ValueError: The array has another shape or type, or no rate.
        """
        objects = self._find("edge_run_audio", _sound(sound, rate))
        return Heard(objects, self.text)

    def stream_audio(self, samples: np.ndarray[Any, Any], rate: int) -> list[Window]:
        """Run the windows that the next samples of a stream complete, any number of them, by the steps of the release.

        Raises:
            EdgeError: The samples or the release do not fit, and the stream is as it was; or the model failed.
            ValueError: The array has another shape or type than for `run_audio`, or no rate.
        """
        return self._stream("edge_stream_audio", ctypes.byref(_sound(samples, rate)))

    def end_stream(self) -> list[Window]:
        """End the stream: zeros follow samples that had no window so far. The next samples begin another one."""
        return self._stream("edge_end_stream")

    def _stream(self, function: str, *audio: Any) -> list[Window]:
        windows: list[Window] = []
        take = _Take(lambda _, number, objects: windows.append(Window(number, objects.contents.read())))
        self._call(function, *audio, take, None)
        return windows

    def text_of(self, numbers: Sequence[int]) -> str:
        """Return the text of tokens, by their numbers in the vocabulary of the release; an EdgeError without one."""
        text = ctypes.c_char_p()
        array = (ctypes.c_int64 * len(numbers))(*numbers)
        self._call("edge_text", array, ctypes.c_size_t(len(numbers)), ctypes.byref(text))
        return (text.value or b"").decode()

    def _find(self, function: str, given: Any) -> list[Object]:
        found = _Objects(ctypes.sizeof(_Objects))
        self._call(function, ctypes.byref(given), ctypes.byref(found))
        self.text = (found.text or b"").decode()
        return found.read()

    def outputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the outputs of the last run, by name, as `run` does."""
        return {name: _cut(tensor) for name, tensor in self._tensors("output")}

    def close(self) -> None:
        """End its threads and give its memory back. Arrays of its inputs must not be used afterwards."""
        self._functions.edge_close(self._model)
        self._model = ctypes.c_void_p()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, inputs: Mapping[str, Any], places: Mapping[str, np.ndarray[Any, Any]]) -> None:
        if set(inputs) != set(places):
            raise ValueError(f"the inputs are {', '.join(sorted(places))}, not {', '.join(sorted(inputs)) or 'none'}")
        for name, place in places.items():
            given = np.asarray(inputs[name])
            if given.shape != place.shape or not np.can_cast(given.dtype, place.dtype, "safe"):
                raise ValueError(
                    f"input {name} is {given.dtype}{list(given.shape)}, not {place.dtype}{list(place.shape)}"
                )
            place[...] = given

    def _count_variants(self) -> int:
        return int(self._functions.edge_variants(self._model)) if hasattr(self._functions, "edge_variants") else 0

    def _select_for(self, inputs: Mapping[str, Any]) -> None:
        """Select the variant with the shapes of arrays; `_write` refuses those of other names."""
        names = [name for name, _ in self._tensors("input")]
        given = [(number, np.shape(inputs[name])) for number, name in enumerate(names) if name in inputs]
        sizes = [(ctypes.c_int64 * len(shape))(*shape) for _, shape in given]  # alive until the call has ended
        pairs = zip(given, sizes, strict=True)
        shapes = (_Shape * len(given))(*(_Shape(number, len(shape), array) for (number, shape), array in pairs))
        try:
            self._call("edge_set_shapes", len(given), shapes)
        except EdgeError as error:
            raise ValueError(str(error)) from error

    def _opened(self) -> None:
        if not self._model:
            raise EdgeError(2, "the model is closed")

    def _release(self) -> Any:
        release = _Release(ctypes.sizeof(_Release))
        self._call("edge_release_of", ctypes.byref(release))
        return release

    def _tensors(self, kind: str) -> list[tuple[str, _Tensor]]:
        self._opened()
        tensors = []
        for number in range(getattr(self._functions, f"edge_{kind}s")(self._model)):
            tensor = _Tensor(ctypes.sizeof(_Tensor), state=-1)
            self._call(f"edge_{kind}", number, ctypes.byref(tensor))
            tensors.append((tensor.name.decode(), tensor))
        return tensors

    def _call(self, function: str, *arguments: Any) -> None:
        self._opened()
        self._check(getattr(self._functions, function)(self._model, *arguments))

    def _check(self, code: int) -> None:
        if code != 0:
            raise EdgeError(code, self._functions.edge_error().decode(errors="replace"))


def _sound(sound: bytes | np.ndarray[Any, Any], rate: int) -> Any:
    """Return a sound, which keeps its samples."""
    is_file = isinstance(sound, bytes)
    array = np.frombuffer(sound, np.uint8) if is_file else np.ascontiguousarray(sound)
    number, channels = SOUNDS.get(str(array.dtype), 0), array.shape[1] if array.ndim > 1 else 1
    if not is_file and (not number or array.ndim not in {1, 2} or rate < 1):
        raise ValueError(f"a sound of {array.dtype}{list(array.shape)} needs its rate, and int16 or float32")
    kind = (1, 0, 0) if is_file else (number, rate, channels)
    audio = _Audio(ctypes.sizeof(_Audio), *kind, array.ctypes.data, array.nbytes)
    audio.samples = array
    return audio


def _file(contents: bytes) -> Any:
    """Return a picture that is read from a file; `contents` must stay until it was."""
    number = next((number for number, start in _FILES.items() if contents.startswith(start)), 7)
    data = ctypes.cast(ctypes.c_char_p(contents), ctypes.c_void_p)
    return _Image(ctypes.sizeof(_Image), number, 0, 0, data, len(contents))


def _picture(pixels: bytes | np.ndarray[Any, Any], format: str, size: tuple[int, int] | None) -> Any:  # noqa: A002
    """Return a picture, which keeps its pixels."""
    if isinstance(pixels, bytes):
        return _file(pixels)
    array, channels = np.ascontiguousarray(pixels), _CHANNELS.get(format)
    if array.dtype != np.uint8 or format not in FORMATS:
        raise ValueError(f"a picture is uint8 in a format of {', '.join(FORMATS)}, not {array.dtype} {format}")
    if size is None and (channels is None or array.shape[2:] != channels or not array.shape[1:]):
        raise ValueError(f"a picture in {format} of shape {list(array.shape)} needs its size")
    width, height = size or array.shape[1::-1]
    image = _Image(ctypes.sizeof(_Image), FORMATS.index(format) + 1, width, height, array.ctypes.data, array.nbytes)
    image.pixels = array
    return image


def _cut(tensor: _Tensor) -> np.ndarray[Any, Any]:
    whole = tensor.array()
    valid = whole if tensor.bound_axis < 0 else whole.take(range(tensor.valid), tensor.bound_axis)
    return valid.copy()
