"""The instructions of the matrix unit of x86 processors (AMX), as functions that LLVM inlines.

A register of the unit is a tile of 16 rows of 64 bytes. One instruction multiplies a tile of numbers (16 pixels, 64
bytes of channels) with a tile of weights (those channels, 16 outputs), and adds the products to a tile of sums (16
pixels, 16 outputs). Each 32 bits of a factor hold neighbouring channels: two numbers of bfloat16, or four bytes.

Each function has two bodies: the instructions, and portable code that keeps its sums in memory, by which the same
kernels can be tested on any processor. Linux lets a process use the unit after it has asked: the first kernel asks.

Source: Intel SDM volume 1, chapter 18, and volume 2 (TILELOADD, TDPBF16PS, TDPBUSD); Documentation/arch/x86/xstate.rst
of Linux.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels.bfloat16 import emit as bfloat16
from toolchain.backends.cpu.kernels.emit import Expr

SIDE = 16
"""Rows of a tile, and its columns of 32 bits."""

WORDS = SIDE * SIDE
"""Numbers of 32 bits in a tile."""

_REGISTERS = 8
_ROW_BYTES, _TILE_BYTES = 4 * SIDE, 4 * WORDS

_BEGIN, _END, _ZERO, _START, _STEP, _STORE, _REFUSED = (
    f"toolchain_tiles_{name}" for name in ("begin", "end", "zero", "start", "step", "store", "refused")
)

# Linux, arch/x86/include/uapi/asm/prctl.h and unistd_64.h: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@dataclass(frozen=True)
class Group:
    """Tiles that are summed up together.

    Attributes:
        pixels: Tiles of pixels.
        blocks: Tiles of outputs: blocks of 16 channels.
        is_bytes: Whether the factors are uint8 and int8, and the sums int32; otherwise they are bfloat16 and float32.
        row: Sums from one pixel to the next in memory: 16, or more if the blocks of a pixel lie together.
    """

    pixels: int
    blocks: int
    is_bytes: bool
    row: int = SIDE

    @property
    def fits(self) -> bool:
        """Whether the registers hold the sums, the factors of one kind, and one of the other."""
        return self.pixels * self.blocks + min(self.pixels, self.blocks) + 1 <= _REGISTERS

    @property
    def name(self) -> str:
        """What the names of its functions end with: kernels of several groups may be in one library."""
        return f"{self.pixels}x{self.blocks}_{'bytes' if self.is_bytes else 'bfloat16'}_{self.row}"

    def place(self, number: int) -> int:
        """Return where a tile of sums begins, in bytes; tiles are numbered block by block."""
        block, pixel = divmod(number, self.pixels)
        apart = SIDE if self.row > SIDE else self.pixels * WORDS
        return 4 * (block * apart + pixel * SIDE * self.row)

    @property
    def sum_dtype(self) -> str:
        """Element type of the sums."""
        return "int32" if self.is_bytes else "float32"


# --- calls -----------------------------------------------------------------------------------------------------------


def check_permission() -> None:
    """Write that the kernel fails where Linux refuses the unit to the process."""
    refused = tirx.call_extern("int32", _REFUSED)
    with T.Assert(T.Bind(refused) == 0, "Linux refuses the AMX tiles of the processor to this process"):
        pass


def begin() -> None:
    """Write the begin of a thread's use of the unit."""
    _call(_BEGIN)


def end() -> None:
    """Write the end of a thread's use of the unit, so that switches to other threads need not save its registers."""
    _call(_END)


def start(group: Group, sums: Expr, initial: Expr | None) -> None:
    """Write the begin of a group's sums.

    Args:
        group: The group.
        sums: First element of the memory for them, which `store` fills: [blocks, pixels, 16, 16], or see `Group.row`.
        initial: Element of a buffer where the first block's 16 sums start from, before those of the others; None for 0.
    """
    if initial is None:
        _call(f"{_ZERO}_{group.name}", tirx.address_of(sums))
    else:
        _call(f"{_START}_{group.name}", tirx.address_of(sums), tirx.address_of(initial))


def step(group: Group, sums: Expr, numbers: Expr, weights: Expr) -> None:
    """Write the products of 64 bytes of channels.

    Args:
        group: The group.
        sums: As for `start`.
        numbers: Element of a buffer where the group's first pixel begins; the others follow, 64 bytes each.
        weights: Element of a buffer where the first block's tile begins; the others follow.
    """
    _call(f"{_STEP}_{group.name}", tirx.address_of(sums), tirx.address_of(numbers), tirx.address_of(weights))


def store(group: Group, sums: Expr) -> None:
    """Write the end of a group's sums: they are in memory then."""
    _call(f"{_STORE}_{group.name}", tirx.address_of(sums))


def _call(name: str, *arguments: Expr) -> None:
    T.evaluate(tirx.call_extern("void", name, *arguments))


# --- functions of LLVM -----------------------------------------------------------------------------------------------


def definitions(group: Group, *, has_instructions: bool) -> str:
    """Return the functions of a group in LLVM's language."""
    return _instructions(group) if has_instructions else _portable(group)


def _function(name: str, arguments: str, lines: list[str]) -> str:
    body = "".join(f"  {line}\n" for line in lines)
    return f"define void @{name}({arguments}) alwaysinline nounwind {{\n{body}  ret void\n}}\n"


def _instructions(group: Group) -> str:
    product = "tdpbusd" if group.is_bytes else "tdpbf16ps"
    zeros, starts, stores = [], [], []
    for number in range(group.pixels * group.blocks):
        zeros.append(f"call void @llvm.x86.tilezero(i8 {number})")
        # Every row is the same 64 bytes.
        starts += _load(number, "%initial", number // group.pixels * _ROW_BYTES, 0)
        stores.append(f"%at.{number} = getelementptr i8, ptr %sums, i64 {group.place(number)}")
        stores.append(f"call void @llvm.x86.tilestored64(i8 {number}, ptr %at.{number}, i64 {4 * group.row})")
    return (
        _permission()
        + _function(_BEGIN, "", _configure())
        + _function(_END, "", ["call void @llvm.x86.tilerelease()"])
        + _function(f"{_ZERO}_{group.name}", "ptr %sums", zeros)
        + _function(f"{_START}_{group.name}", "ptr %sums, ptr %initial", starts)
        + _function(f"{_STEP}_{group.name}", "ptr %sums, ptr %numbers, ptr %weights", _products(group, product))
        + _function(f"{_STORE}_{group.name}", "ptr %sums", stores)
        + "declare void @llvm.x86.ldtilecfg(ptr)\ndeclare void @llvm.x86.tilerelease()\n"
        "declare void @llvm.x86.tilezero(i8)\ndeclare void @llvm.x86.tileloadd64(i8, ptr, i64)\n"
        f"declare void @llvm.x86.tilestored64(i8, ptr, i64)\ndeclare void @llvm.x86.{product}(i8, i8, i8)\n"
    )


def _load(register: int, base: str, offset: int, stride: int) -> list[str]:
    name = f"{base}.{register}.{offset}"
    return [
        f"{name} = getelementptr i8, ptr {base}, i64 {offset}",
        f"call void @llvm.x86.tileloadd64(i8 {register}, ptr {name}, i64 {stride})",
    ]


def _products(group: Group, product: str) -> list[str]:
    """Keep the factors of which there are fewer in registers, and load the others one after the other."""
    first = group.pixels * group.blocks
    kept, passing = ("%numbers", "%weights") if group.pixels <= group.blocks else ("%weights", "%numbers")
    lines = []
    fewer, more = sorted((group.pixels, group.blocks))
    for number in range(fewer):
        lines += _load(first + number, kept, number * _TILE_BYTES, _ROW_BYTES)
    # Two registers take turns, so that a load need not wait for the products before it.
    spare = _REGISTERS - first - fewer
    for number in range(more):
        register = first + fewer + number % spare
        lines += _load(register, passing, number * _TILE_BYTES, _ROW_BYTES)
        for other in range(fewer):
            pixel, block = (other, number) if kept == "%numbers" else (number, other)
            pixels, weights = (first + other, register) if kept == "%numbers" else (register, first + other)
            total = block * group.pixels + pixel
            lines.append(f"call void @llvm.x86.{product}(i8 {total}, i8 {pixels}, i8 {weights})")
    return lines


def _configure() -> list[str]:
    """Make all registers tiles of 16 rows and 64 bytes: palette 1 (byte 0), bytes of rows (from 16), rows (from 48)."""
    lines = ["%config = alloca [64 x i8], align 64", "store <64 x i8> zeroinitializer, ptr %config, align 64"]
    widths = ", ".join([f"i16 {_ROW_BYTES}"] * _REGISTERS)
    heights = ", ".join([f"i8 {SIDE}"] * _REGISTERS)
    return [
        *lines,
        "store i8 1, ptr %config, align 64",
        "%widths = getelementptr i8, ptr %config, i64 16",
        f"store <{_REGISTERS} x i16> <{widths}>, ptr %widths, align 16",
        "%heights = getelementptr i8, ptr %config, i64 48",
        f"store <{_REGISTERS} x i8> <{heights}>, ptr %heights, align 16",
        "call void @llvm.x86.ldtilecfg(ptr %config)",
    ]


def _permission() -> str:
    """Write a function that returns 0 where the process may use the unit; it asks until it may."""
    registers = "={rax},{rax},{rdi},{rsi},~{rcx},~{r11},~{memory},~{dirflag},~{fpsr},~{flags}"
    return (
        f"@{_REFUSED}_not = internal global i32 0\n"
        f"define i32 @{_REFUSED}() alwaysinline nounwind {{\nentry:\n"
        f"  %known = load atomic i32, ptr @{_REFUSED}_not monotonic, align 4\n"
        "  %may = icmp eq i32 %known, 1\n  br i1 %may, label %yes, label %ask\nask:\n"
        f'  %answer = call i64 asm sideeffect "syscall", "{registers}"'
        f"(i64 {_ARCH_PRCTL}, i64 {_REQUEST}, i64 {_TILE_DATA})\n"
        "  %granted = icmp eq i64 %answer, 0\n  br i1 %granted, label %note, label %no\nnote:\n"
        f"  store atomic i32 1, ptr @{_REFUSED}_not monotonic, align 4\n  br label %yes\n"
        "yes:\n  ret i32 0\nno:\n  ret i32 1\n}\n"
    )


def _portable(group: Group) -> str:
    vector, tile = f"<{SIDE} x {'i32' if group.is_bytes else 'float'}>", f"{_STEP}_tile_{group.name}"
    zeros, starts, steps = [], [], []
    for number in range(group.pixels * group.blocks):
        block, pixel = divmod(number, group.pixels)
        starts.append(f"%from.{number} = getelementptr i8, ptr %initial, i64 {block * _ROW_BYTES}")
        starts.append(f"%initial.{number} = load {vector}, ptr %from.{number}, align 4")
        for row in range(SIDE):
            line = f"%line.{number}.{row}"
            address = f"{line} = getelementptr i8, ptr %sums, i64 {group.place(number) + 4 * row * group.row}"
            starts += [address, f"store {vector} %initial.{number}, ptr {line}, align 4"]
            zeros += [address, f"store {vector} zeroinitializer, ptr {line}, align 4"]
        places = {"sums": group.place(number), "numbers": pixel * _TILE_BYTES, "weights": block * _TILE_BYTES}
        for name, place in places.items():
            steps.append(f"%{name}.{number} = getelementptr i8, ptr %{name}, i64 {place}")
        steps.append(f"call void @{tile}(ptr %sums.{number}, ptr %numbers.{number}, ptr %weights.{number})")
    return (
        f"define i32 @{_REFUSED}() alwaysinline nounwind {{\n  ret i32 0\n}}\n"
        + _function(_BEGIN, "", [])
        + _function(_END, "", [])
        + _function(f"{_ZERO}_{group.name}", "ptr %sums", zeros)
        + _function(f"{_START}_{group.name}", "ptr %sums, ptr %initial", starts)
        + _portable_tile(
            tile, vector, 4 * group.row, _byte_products() if group.is_bytes else bfloat16.portable_dot(SIDE)
        )
        + _function(f"{_STEP}_{group.name}", "ptr %sums, ptr %numbers, ptr %weights", steps)
        + _function(f"{_STORE}_{group.name}", "ptr %sums", [])
    )


def _portable_tile(name: str, vector: str, row_bytes: int, products: str) -> str:
    """Write the products of a tile of pixels and one of weights; `products` add those of %a and %b to %total."""
    integers = f"<{SIDE} x i32>"
    return (
        f"define void @{name}(ptr %sums, ptr %numbers, ptr %weights) alwaysinline nounwind {{\n"
        "entry:\n  br label %row\nrow:\n"
        "  %r = phi i64 [ 0, %entry ], [ %r.next, %row.end ]\n"
        f"  %place = getelementptr [{row_bytes} x i8], ptr %sums, i64 %r\n"
        f"  %pixel = getelementptr [{_ROW_BYTES} x i8], ptr %numbers, i64 %r\n"
        f"  %before = load {vector}, ptr %place, align 4\n  br label %step\nstep:\n"
        "  %k = phi i64 [ 0, %row ], [ %k.next, %step ]\n"
        f"  %total = phi {vector} [ %before, %row ], [ %sum, %step ]\n"
        "  %word = getelementptr i32, ptr %pixel, i64 %k\n  %one = load i32, ptr %word, align 4\n"
        f"  %alone = insertelement {integers} poison, i32 %one, i64 0\n"
        f"  %a = shufflevector {integers} %alone, {integers} poison, {integers} zeroinitializer\n"
        f"  %line = getelementptr [{_ROW_BYTES} x i8], ptr %weights, i64 %k\n"
        f"  %b = load {integers}, ptr %line, align 4\n"
        f"{products}"
        f"  %k.next = add i64 %k, 1\n  %more = icmp ult i64 %k.next, {SIDE}\n"
        "  br i1 %more, label %step, label %row.end\nrow.end:\n"
        f"  store {vector} %sum, ptr %place, align 4\n"
        f"  %r.next = add i64 %r, 1\n  %again = icmp ult i64 %r.next, {SIDE}\n"
        "  br i1 %again, label %row, label %done\ndone:\n  ret void\n}\n"
    )


def _byte_products() -> str:
    """Add the products of four unsigned bytes of %a and four signed ones of %b."""
    integers = f"<{SIDE} x i32>"

    def splat(number: int) -> str:
        return f"<{', '.join([f'i32 {number}'] * SIDE)}>"

    lines, total = [], "%total"
    for byte in range(4):
        result = "%sum" if byte == 3 else f"%sum.{byte}"  # noqa: PLR2004 - the last of four
        lines += [
            f"%a.{byte}.low = lshr {integers} %a, {splat(8 * byte)}",
            f"%a.{byte} = and {integers} %a.{byte}.low, {splat(255)}",
            f"%b.{byte}.high = shl {integers} %b, {splat(24 - 8 * byte)}",
            f"%b.{byte} = ashr {integers} %b.{byte}.high, {splat(24)}",
            f"%product.{byte} = mul {integers} %a.{byte}, %b.{byte}",
            f"{result} = add {integers} {total}, %product.{byte}",
        ]
        total = result
    return "".join(f"  {line}\n" for line in lines)
