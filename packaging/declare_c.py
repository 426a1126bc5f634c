"""Owns the declarations of csrc for Cython: `pywan/_core/c_<folder>.pxd`, made from the headers of each folder.

The C preprocessor reads all headers at once, so the rows of tables are in place. What remains are declarations in the
form that clang-format gives: they are parted at their semicolons and braces, without a grammar of C. A field or
function with a type that Cython does not know (`pthread_t`) is left out, since no unit could use it. What else cannot
be declared ends the build, with the words of the header that say it.
"""

import contextlib
import keyword
import re
import subprocess
from pathlib import Path

KNOWN = ("void", "char", "short", "int", "long", "float", "double", "size_t", "ssize_t", "bint")
STDINT = [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)]
# Words of C that mean nothing to Cython, or that Cython assumes of what is extern.
LEFT_OUT = re.compile(
    r"\b(?:static|inline|extern|restrict|_Atomic|_Noreturn|_Thread_local)\b|\b_Alignas\(\w+\)"
    r"|\b__attribute__\s*\(\(.*?\)\)+"
)
TYPE = re.compile(r"(?:const )?(?:(?:unsigned|signed|short|long)\b ?)+(?:int|char)?|(?:const )?\w+")
# The type of a macro by the first of these that its value has. Other whole numbers of 32 bits are of an enum.
MACROS = {'"': "const char *", "(uint32_t)": None, "uint64_t)": "const uint64_t ", "int64_t)": "const int64_t ",
          "ull": "const uint64_t ", "UINT64_MAX": "const uint64_t ", "UINT32_MAX": "const uint32_t "}  # fmt: skip


def headers():
    """The headers that units may use. An inner one belongs to the C files of its folder, and no other one is ours."""
    return [path for path in sorted(Path("csrc").glob("*/wan_*.h")) if not path.stem.endswith("_inner")]


def preprocessed(compiler):
    """Returns what each header says itself, with its macros. What a header includes comes before it."""
    includes = "".join(f'#include "{path.relative_to("csrc")}"\n' for path in headers())
    command = [*compiler, "-E", "-dD", "-D_GNU_SOURCE", "-Icsrc", "-"]
    done = subprocess.run(command, input=includes, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the headers of csrc cannot be read:\n{done.stderr}")
    found, at = {}, ""
    for line in done.stdout.splitlines():
        if marker := re.match(r'# \d+ "(?:.*/)?csrc/(.*)"|# ', line):
            at = marker[1]
        elif at and line.strip():
            found[at] = [*found.pop(at, []), line]  # A header that ends later comes behind.
    return found


def parts(text, separator):
    """Parts a text where the separator stands outside all brackets."""
    depth, begun = 0, 0
    for at, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == separator and depth == 0:
            yield text[begun:at].strip()
            begun = at + 1
    if text[begun:].strip():
        yield text[begun:].strip()


def first_block(text):
    depth = 0
    for at, char in enumerate(text, 1):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[:at]
    return text


def declarations(text):
    """Returns the declarations of a header, each in one line. The body of a function ends its declaration."""
    text = re.sub(r"\)\s*\{", ") ;{", text)
    for part in parts(text, ";"):
        while part.startswith("{"):  # The body of the function before.
            part = part[len(first_block(part)) :].strip()
        if part and not part.startswith("_Static_assert"):
            yield re.sub(r"\* ", "*", " ".join(LEFT_OUT.sub(" ", part).replace("_Bool", "bint").split()))


class Unknown(Exception):
    """A type that Cython does not know."""


class Refused(Exception):
    """Says why something in a header cannot be declared."""


class Declarer:
    """The declarations of all headers so far."""

    def __init__(self, structs):
        self.home = dict.fromkeys([*KNOWN, *STDINT], "")  # By type: the folder that declares it.
        self.structs = structs  # Those that have fields in some header.
        self.used = set()

    def type_and_rest(self, text):
        """Parts `const uint8_t *at, *end` behind the type."""
        text = re.sub(r"\bstruct (\w+)", r"\1", text)
        found = TYPE.match(text)
        if not found or re.match(r"(?:const )?(?:struct|union|enum)\b", text):
            raise Refused(f"`{text}` begins with no type, or with one that has no name of its own")
        type_ = found[0].strip()
        base = re.sub(r"\b(const|unsigned|signed)\b", "", type_).split()
        if any(word not in self.home for word in base):
            raise Unknown(text)
        self.used |= {self.home[word] for word in base}
        return type_, text[len(type_) :].strip()

    def declared(self, type_, declarator, is_parameter=False):
        """Returns a field, variable, function or parameter in Cython's words."""
        if bits := re.fullmatch(r"(\w+) : (\d+)", declarator):
            return f"uint{max(8, 1 << (int(bits[2]) - 1).bit_length())}_t {bits[1]}"
        declarator = declarator.partition(" = ")[0].replace("*const ", "*")
        if pointer := re.fullmatch(r"(\**)\((\*+\w+)\)\((.*)\)", declarator):
            return f"{type_} {pointer[1]}({pointer[2]})({self.parameters(pointer[3])}) noexcept nogil"
        if function := re.fullmatch(r"(\**\w+)\((.*)\)", declarator):
            return f"{type_} {function[1]}({self.parameters(function[2])})"
        plain = re.fullmatch(r"(\**)(\w*)((?:\[[^]]*\])*)", declarator)
        if not plain or not (plain[2] or is_parameter):
            raise Refused(f"`{type_} {declarator}` is neither a name, an array, a function nor a pointer to a function")
        stars, name, array = plain.groups()
        if array == "[]":
            stars, array = f"{stars}*", ""
        if keyword.iskeyword(name):
            name = f"{name}_" if is_parameter else f'{name}_ "{name}"'
        if is_parameter and not stars and not array:
            type_ = type_.removeprefix("const ")
        return f"{type_} {stars}{name}{array}".strip()

    def parameters(self, text):
        if text == "void":
            return ""
        return ", ".join(
            part if part == "..." else self.declared(*self.type_and_rest(part), is_parameter=True)
            for part in parts(text, ",")
        )

    def fields(self, body):
        for field in parts(body, ";"):
            if union := re.fullmatch(
                r"(?:union|struct) \{(.*)\}", field
            ):  # It has no name: its fields are the struct's.
                yield from self.fields(union[1])
                continue
            try:
                type_, rest = self.type_and_rest(field)
                yield from [self.declared(type_, declarator) for declarator in parts(rest, ",")]
            except Unknown:
                continue

    def lines(self, folder, text):
        """Yields the lines of one declaration."""
        for name in re.findall(r"\bstruct (\w+)(?! \{)\b", text):
            if name in self.structs and name not in self.home and f"struct {name} {{" not in text:
                self.home[name] = folder  # Its fields come later.
                yield f"ctypedef struct {name}"
        if enum := re.fullmatch(r"(typedef )?enum(?: \w+)? \{(.*)\}\s*(\w*)", text):
            names = ", ".join(part.split()[0] for part in parts(enum[2], ",") if part.strip())
            if enum[3]:
                self.home[enum[3]] = folder
            yield f"ctypedef enum {enum[3]}:\n        {names}" if enum[3] else f"enum: {names}"
        elif struct := re.fullmatch(r"(?:typedef )?struct(?: (\w+))? \{(.*)\}\s*(\w*)", text):
            name = struct[3] or struct[1]
            self.home[name] = folder
            fields = list(self.fields(struct[2]))
            yield "\n        ".join([f"ctypedef struct {name}:", *(fields or ["pass"])])
        elif ahead := re.fullmatch(r"typedef struct (\w+) \1", text):
            if ahead[1] not in self.home:  # No header has its fields.
                self.home[ahead[1]] = folder
                yield f"ctypedef struct {ahead[1]}:\n        pass"
        elif not text.startswith("struct ") or "(" in text:
            is_type = text.startswith("typedef ")
            type_, rest = self.type_and_rest(text.removeprefix("typedef "))
            for declarator in parts(rest, ","):
                if is_type:
                    self.home[re.search(r"\w+", declarator)[0]] = folder
                yield f"ctypedef {self.declared(type_, declarator)}" if is_type else self.declared(type_, declarator)


def macro(line, values):
    """Returns the declaration of a macro with a value, and notes the value for macros that name it."""
    found = re.match(r"#define (WAN_\w+) (.+)", line)
    if not found or found[1].startswith("WAN_FIELD"):
        return []
    name, value = found.groups()
    values[name] = value = re.sub(r"\bWAN_\w+", lambda other: values.get(other[0], other[0]), value)
    sign = next((sign for sign in MACROS if sign in value), None)
    if sign is None and re.search(r"\d\.", value):
        raise Refused(f"`{name}` is no whole number")
    if sign is None and any(int(number, 0) >= 1 << 32 for number in re.findall(r"\b(?:0x[0-9a-fA-F]+|\d+)", value)):
        raise Refused(f"`{name}` is larger than 32 bits: its number must end in ull")
    type_ = MACROS.get(sign)
    return [f"{type_}{name}" if type_ else f"enum: {name}"]


def made(compiler):
    """Returns the text of each file of declarations by the name of its folder of csrc."""
    texts = {
        header: (
            [line for line in lines if line.startswith("#")],
            list(declarations(re.sub(r'"(?:[^"\\]|\\.)*"', '""', "\n".join(x for x in lines if x[0] != "#")))),
        )
        for header, lines in preprocessed(compiler).items()
        if Path("csrc", header) in headers()
    }
    whole = " ".join(text for _, found in texts.values() for text in found)
    declarer = Declarer(set(re.findall(r"\bstruct (\w+) \{", whole)))
    blocks, uses, values = {}, {}, {}
    for header, (macros, found) in texts.items():
        folder = header.partition("/")[0]
        declarer.used = uses.setdefault(folder, set())
        lines = []
        try:
            for text in macros:
                lines += macro(text, values)
            for text in found:
                with contextlib.suppress(Unknown):
                    lines += declarer.lines(folder, text)
        except Refused as why:
            raise SystemExit(f"csrc/{header}: {why}, so packaging/declare_c.py cannot declare it to Cython") from None
        if lines:
            blocks.setdefault(folder, []).append(f'cdef extern from "{header}" nogil:\n    ' + "\n    ".join(lines))
    return {
        folder: "\n\n".join(
            [
                f"# Made by packaging/declare_c.py from the headers of csrc/{folder}.\n"
                + f"from libc.stdint cimport {', '.join(STDINT)}\n"
                + "".join(f"from pywan._core.c_{other} cimport *\n" for other in sorted(uses[folder] - {"", folder})),
                *found,
            ]
        )
        + "\n"
        for folder, found in blocks.items()
    }


def declare(compiler):
    """Writes what has changed of the declarations. Removes those of a folder that is not there any more."""
    texts = {Path(f"pywan/_core/c_{folder}.pxd"): text for folder, text in made(compiler).items()}
    for path, text in texts.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in Path("pywan/_core").glob("c_*.pxd"):
        if path not in texts and path.read_text().startswith("# Made by "):
            path.unlink()
