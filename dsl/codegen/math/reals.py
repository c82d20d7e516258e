"""Arithmetic notation for emitting scalar LLVM IR: reals, the integers of their width, and flags.

Formulas read as formulas: `fma(x, y, z)`, `a * b + c`, `select(x < 0, a, b)`; every operation becomes one instruction
of the function under construction, in the order Python evaluates it, without fast-math flags, so that error-free
transformations (`exact_sum`, `exact_product`) hold. Python floats stand for constants of the other operand's type.

An unordered comparison is false, as in C: `select(x > limit, limit, x)` keeps a NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dsl.codegen.llvm import Function, Module, Value, float_constant
from dsl.codegen.math import by_register

__all__ = [
    "F32",
    "F64",
    "Body",
    "Double",
    "Flag",
    "Format",
    "Real",
    "Whole",
    "choose",
    "copysign",
    "exact_fma",
    "exact_product",
    "exact_sum",
    "fma",
    "polynomial",
    "quick_sum",
    "scaled",
    "select",
    "sqrt",
]


_LONG = 9  # terms of a polynomial that is not all Horner's


@dataclass(frozen=True)
class Format:
    """A binary floating-point format."""

    name: str
    type: str
    whole: str  # the integer type of the same width
    digits: int  # stored bits of the significand
    bias: int

    @property
    def shifter(self) -> float:
        """1.5 times the spacing-one magnitude: adding it rounds to a whole number, found in the low bits."""
        return 1.5 * 2.0**self.digits

    @property
    def smallest(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def one(self) -> int:
        """The bits of 1.0."""
        return self.bias << self.digits

    @property
    def sign(self) -> int:
        """The sign bit, as a signed integer."""
        return -1 << (31 if self is F32 else 63)


F32 = Format("f32", "float", "i32", 23, 127)
F64 = Format("f64", "double", "i64", 52, 1023)
FORMATS = {"float": F32, "double": F64}


@dataclass
class Body:
    """A function under construction, and the external functions that it needs."""

    fn: Function
    has_fma: bool = True
    has_scaling: bool = False  # whether the CPU has the instructions of `by_register`
    near_only: bool = False
    far: Flag | None = None  # where `rarely` calls a function
    declarations: dict[str, tuple[str, list[str], str]] = field(default_factory=dict)
    includes: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def start(
        name: str, format: Format, arity: int, *, has_fma: bool, has_scaling: bool, part: str = ""
    ) -> Body:
        """Start the definition of a function of `arity` numbers of one format, or of a part of it, see `Definition`."""
        result = "i1" if part == "far" else format.type
        attributes = "alwaysinline nounwind willreturn memory(none)"
        params = [(format.type, label) for label in "xyz"[:arity]]
        fn = Module(name).function(name, result, params, internal=True, attributes=attributes)
        return Body(fn, has_fma, has_scaling, near_only=bool(part))

    def define(self, type: str, instruction: str) -> Value:
        return self.fn.define(type, instruction)

    def call(self, name: str, *args: Value, attributes: str = "nounwind") -> Value:
        """Call a function of arguments and result of one type."""
        type = args[0].type
        self.declarations[name] = (type, [type] * len(args), attributes)
        listing = ", ".join(f"{type} {arg.text}" for arg in args)
        return self.fn.define(type, f"call {type} @{name}({listing})")

    def libm(self, name: str, format: Format, arity: int = 1) -> str:
        """Return the name of a function that calls libm's and that LLVM does not know for a library function."""
        type, external = format.type, name + ("f" if format is F32 else "")
        wrapper = f"dsl.libm.{name}.{format.name}"
        listing = ", ".join(f"{type} %a{i}" for i in range(arity))
        attributes = "nounwind willreturn memory(none)"
        self.declarations[external] = (type, [type] * arity, attributes)
        self.includes[wrapper] = (
            f"define linkonce_odr hidden {type} @{wrapper}({listing}) noinline cold {attributes} {{\n"
            f"  %r = call {type} @{external}({listing})\n  ret {type} %r\n}}"
        )
        return wrapper

    def rarely(self, flag: Flag, usual: Value, function: str, *args: Value) -> Value:
        """Return `usual`, or where the flag is true, the result of a function, which is called only there.

        The attribute maps the call to a vector version for 1024 lanes. None is ever needed; that there is a mapping
        makes the vectoriser accept the call, which it then makes lane by lane, behind a test of the lane's flag.
        In a body that only tells `near` results from others there is no call: the flag is kept in `far`.
        """
        self.far = flag
        if self.near_only:
            return usual
        fn, type = self.fn, usual.type
        self.declarations["llvm.expect.i1"] = ("i1", ["i1", "i1"], "nounwind")
        expected = fn.define("i1", f"call i1 @llvm.expect.i1(i1 {flag.value.text}, i1 false)")
        before, then, after = fn.block, fn.label("far"), fn.label("near")
        fn.branch_if(expected, then, after)
        fn.start(then)
        listing = ", ".join(f"{arg.type} {arg.text}" for arg in args)
        variant = f"_ZGV_LLVM_M1024{'v' * len(args)}_{function}({function})"
        attribute = f'"vector-function-abi-variant"="{variant}"'
        result = fn.define(type, f"call {type} @{function}({listing}) {attribute}")
        fn.branch(after)
        fn.start(after)
        return fn.define(type, f"phi {type} [{usual.text}, %{before}], [{result.text}, %{then}]")


class Real:
    """A float or double."""

    __slots__ = ("body", "format", "value")

    def __init__(self, body: Body, value: Value) -> None:
        self.body, self.value, self.format = body, value, FORMATS[value.type]

    def constant(self, number: Number) -> Real:
        """Return a number as one of the same format."""
        if isinstance(number, Real):
            return number
        return Real(self.body, float_constant(number, self.value.type))

    def _binary(self, instruction: str, a: Number, b: Number) -> Real:
        x, y = self.constant(a), self.constant(b)
        type = self.value.type
        return Real(
            self.body,
            self.body.define(type, f"{instruction} {type} {x.value.text}, {y.value.text}"),
        )

    def __add__(self, other: Number) -> Real:
        return self._binary("fadd", self, other)

    def __radd__(self, other: float) -> Real:
        return self._binary("fadd", other, self)

    def __sub__(self, other: Number) -> Real:
        return self._binary("fsub", self, other)

    def __rsub__(self, other: float) -> Real:
        return self._binary("fsub", other, self)

    def __mul__(self, other: Number) -> Real:
        return self._binary("fmul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> Real:
        return self._binary("fdiv", self, other)

    def __rtruediv__(self, other: float) -> Real:
        return self._binary("fdiv", other, self)

    def __neg__(self) -> Real:
        type = self.value.type
        return Real(self.body, self.body.define(type, f"fneg {type} {self.value.text}"))

    def __abs__(self) -> Real:
        return self.intrinsic("fabs")

    def intrinsic(self, name: str, *others: Number) -> Real:
        """Call the LLVM intrinsic of this name with this number first."""
        args = [self.value, *(self.constant(other).value for other in others)]
        return Real(self.body, self.body.call(f"llvm.{name}.{self.format.name}", *args))

    def compare(self, predicate: str, other: Number) -> Flag:
        x, y, type = self.value.text, self.constant(other).value.text, self.value.type
        return Flag(self.body, self.body.define("i1", f"fcmp {predicate} {type} {x}, {y}"))

    def __lt__(self, other: Number) -> Flag:
        return self.compare("olt", other)

    def __le__(self, other: Number) -> Flag:
        return self.compare("ole", other)

    def __gt__(self, other: Number) -> Flag:
        return self.compare("ogt", other)

    def __ge__(self, other: Number) -> Flag:
        return self.compare("oge", other)

    def equals(self, other: Number) -> Flag:
        return self.compare("oeq", other)

    def is_nan(self) -> Flag:
        return self.compare("uno", self)

    def at_most(self, limit: float) -> Real:
        """The smaller of this and the limit; a NaN stays."""
        return select(self > limit, limit, self)

    def at_least(self, limit: float) -> Real:
        """The larger of this and the limit; a NaN stays."""
        return select(self < limit, limit, self)

    def times_power(self, n: Real) -> Real:
        """This times 2**floor(n), a NaN where n is one; for CPUs that have an instruction for it."""
        return Real(self.body, by_register.scale(self.body, self.value, n.value))

    def below_two(self) -> Real:
        """This where its magnitude is below two, else something that is: the highest bit of the exponent is cleared."""
        top = 1 << (30 if self.format is F32 else 62)
        return (self.bits() & ~top).real()

    def bits(self) -> Whole:
        whole = self.format.whole
        text = f"bitcast {self.value.type} {self.value.text} to {whole}"
        return Whole(self.body, self.body.define(whole, text), self.format)

    def to(self, format: Format) -> Real:
        """Convert to another format."""
        if format is self.format:
            return self
        instruction = "fpext" if format is F64 else "fptrunc"
        text = f"{instruction} {self.value.type} {self.value.text} to {format.type}"
        return Real(self.body, self.body.define(format.type, text))


Number = Real | float


class Whole:
    """An integer as wide as a float format; arithmetic wraps around."""

    __slots__ = ("body", "format", "value")

    def __init__(self, body: Body, value: Value, format: Format) -> None:
        self.body, self.value, self.format = body, value, format

    def constant(self, number: Whole | int) -> Whole:
        if isinstance(number, Whole):
            return number
        return Whole(self.body, Value(str(number), self.format.whole), self.format)

    def _binary(self, instruction: str, a: Whole | int, b: Whole | int) -> Whole:
        x, y, type = self.constant(a).value.text, self.constant(b).value.text, self.format.whole
        return Whole(
            self.body, self.body.define(type, f"{instruction} {type} {x}, {y}"), self.format
        )

    def __add__(self, other: Whole | int) -> Whole:
        return self._binary("add", self, other)

    def __sub__(self, other: Whole | int) -> Whole:
        return self._binary("sub", self, other)

    def __rsub__(self, other: int) -> Whole:
        return self._binary("sub", other, self)

    def __mul__(self, other: int) -> Whole:
        return self._binary("mul", self, other)

    def __and__(self, other: Whole | int) -> Whole:
        return self._binary("and", self, other)

    def __or__(self, other: Whole | int) -> Whole:
        return self._binary("or", self, other)

    def __xor__(self, other: Whole | int) -> Whole:
        return self._binary("xor", self, other)

    def __lshift__(self, count: int) -> Whole:
        return self._binary("shl", self, count)

    def __rshift__(self, count: int) -> Whole:
        """Shift right, filling with zeros."""
        return self._binary("lshr", self, count)

    def compare(self, predicate: str, other: Whole | int) -> Flag:
        x, y, type = self.value.text, self.constant(other).value.text, self.format.whole
        return Flag(self.body, self.body.define("i1", f"icmp {predicate} {type} {x}, {y}"))

    def at_most(self, limit: int) -> Whole:
        """The smaller of this and the limit, both being signed."""
        type, flag = self.format.whole, self.compare("sgt", limit).value.text
        text = f"select i1 {flag}, {type} {limit}, {type} {self.value.text}"
        return Whole(self.body, self.body.define(type, text), self.format)

    def look_up(self, table: str) -> Real:
        """The number of a table that the last five bits tell; for floats, and CPUs that keep tables in registers."""
        return Real(self.body, by_register.look_up(self.body, table, self.value))

    def real(self) -> Real:
        """The number with these bits."""
        text = f"bitcast {self.format.whole} {self.value.text} to {self.format.type}"
        return Real(self.body, self.body.define(self.format.type, text))


class Flag:
    """A truth value."""

    __slots__ = ("body", "value")

    def __init__(self, body: Body, value: Value) -> None:
        self.body, self.value = body, value

    def _binary(self, instruction: str, other: str) -> Flag:
        return Flag(
            self.body, self.body.define("i1", f"{instruction} i1 {self.value.text}, {other}")
        )

    def __and__(self, other: Flag) -> Flag:
        return self._binary("and", other.value.text)

    def __or__(self, other: Flag) -> Flag:
        return self._binary("or", other.value.text)

    def __xor__(self, other: Flag) -> Flag:
        return self._binary("xor", other.value.text)

    def __invert__(self) -> Flag:
        return self._binary("xor", "true")


def select(flag: Flag, a: Number, b: Number) -> Real:
    """Return a where the flag is true, else b; at least one of them is a `Real`."""
    like = a if isinstance(a, Real) else b
    assert isinstance(like, Real)
    x, y, type = like.constant(a).value.text, like.constant(b).value.text, like.value.type
    text = f"select i1 {flag.value.text}, {type} {x}, {type} {y}"
    return Real(like.body, like.body.define(type, text))


def choose(flag: Flag, like: Real, a: float, b: float) -> Real:
    """Return one of two constants of the format of `like`."""
    return select(flag, like.constant(a), b)


def fma(a: Real, b: Number, c: Number) -> Real:
    """a * b + c, rounded once where the CPU can, else twice."""
    if a.body.has_fma:
        return a.intrinsic("fma", b, c)
    return a * b + c


def exact_product(a: Real, b: Number) -> Double:
    """a * b and its rounding error."""
    product = a * b
    if a.body.has_fma:
        return product, a.intrinsic("fma", b, -product)
    (x, x_low), (y, y_low) = _halves(a), _halves(a.constant(b))
    return product, ((x * y - product) + x * y_low + x_low * y) + x_low * y_low


def exact_fma(a: Real, b: Number, c: Real) -> Real:
    """a * b + c for when a * b cancels c: without hardware support the product keeps all its bits."""
    if a.body.has_fma:
        return a.intrinsic("fma", b, c)
    product, error = exact_product(a, b)
    return (product + c) + error


def _halves(a: Real) -> Double:
    """a as a sum of two numbers of half as many digits."""
    high = (a.bits() & -(1 << (a.format.digits // 2 + 1))).real()
    return high, a - high


def exact_sum(a: Real, b: Real) -> Double:
    """a + b and its rounding error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def quick_sum(a: Real, b: Real) -> Double:
    """a + b and its rounding error, where a is zero or at least as large as b (Dekker)."""
    total = a + b
    return total, b - (total - a)


Double = tuple[Real, Real]  # an unevaluated sum of a number and a correction below its last bit


def polynomial(x: Real, coefficients: Sequence[Number], near: int = 2) -> Real:
    """A polynomial, the constant term first: Horner's scheme for `near` terms whose rounding counts, and for short ones.

    The far terms of a long one are added up in pairs, pairs of pairs and so on (Estrin): Horner's chain of twelve
    dependent steps takes longer than all other work on an element.
    """
    *first, rest = coefficients
    if len(coefficients) >= _LONG:
        first, rest = list(coefficients[:near]), _in_pairs(x, coefficients[near:])
    total: Number = rest
    for coefficient in reversed(first):
        total = fma(x, total, coefficient)
    return x.constant(total)


def _in_pairs(x: Real, coefficients: Sequence[Number]) -> Number:
    terms = list(coefficients)
    while len(terms) > 1:
        odd = terms[len(terms) & ~1 :]
        terms = [*(fma(x, high, low) for low, high in zip(terms[::2], terms[1::2])), *odd]
        if len(terms) > 1:
            x = x * x
    return terms[0]


def scaled(x: Real, factors: Sequence[Real]) -> Real:
    """The product of x and the factors, from the left."""
    for factor in factors:
        x = x * factor
    return x


def copysign(x: Real, sign: Real) -> Real:
    return x.intrinsic("copysign", sign)


def sqrt(x: Real) -> Real:
    return x.intrinsic("sqrt")
