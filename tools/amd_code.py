"""Disassembled AMD kernels with their control flow, for tools/check-waits and tools/check-hazards."""
import functools
import re
import subprocess
import sys

INDIRECT = re.compile(r"s_(?:setpc|swappc|call|cbranch_g_fork|cbranch_i_fork|cbranch_join|rfe)")
LINE = re.compile(r"\t(\S+) *(.*?) *// ([0-9A-F]+):[0-9A-F ]+(?:<(.+)>)?$")

NAMED = {"vcc": (106, 107), "vcc_lo": (106,), "vcc_hi": (107,), "m0": (124,), "exec": (126, 127), "exec_lo": (126,), "exec_hi": (127,)}


@functools.lru_cache(None)
def registers(operand):
    """The registers of an operand, as (file, number)."""
    operand = re.sub(r"^-|\||neg\(|abs\(|\)", "", operand)
    if operand in NAMED: return tuple(("s", i) for i in NAMED[operand])
    if not (found := re.fullmatch(r"([vas])(?:(\d+)|\[(\d+):(\d+)\])", operand)): return ()
    first, last = (found[2], found[2]) if found[2] else (found[3], found[4])
    return tuple((found[1], i) for i in range(int(first), int(last) + 1))


class Instruction:
    """`target`: the index of the instruction that it may branch to, or None; `is_target`: one may branch here."""
    __slots__ = ("address", "name", "operands", "target", "is_target")

    def __init__(self, address, name, operands):
        self.address, self.name, self.operands, self.target, self.is_target = address, name, operands, None, False


def read_kernel(path, start, kernel, lines):
    code, branches, index = [], [], {}
    for line in lines:
        if line == "\t\t...": continue  # zeros
        if not (found := LINE.match(line)): sys.exit(f"{path}: {kernel} has a line that is no instruction: {line.strip()}")
        name, operands, address, to = found.groups()
        symbol, _, offset = (to or "").partition("+")
        if INDIRECT.match(name) or (to and symbol != kernel):
            sys.exit(f"{path}: {kernel} leaves itself at 0x{address}, where this check cannot follow: {line.strip()}")
        index[int(address, 16)] = len(code)
        if to: branches.append((len(code), start + int(offset or "0", 16)))
        code.append(Instruction(int(address, 16), name, operands))
    for i, to in branches:
        code[i].target = index[to]
        code[index[to]].is_target = True
    return code


def kernels(objdump, path):
    """Yields (name, its instructions) of each kernel of a code object."""
    text = subprocess.run([objdump, "-d", path], check=True, capture_output=True, text=True).stdout
    if "<unknown>" in text: sys.exit(f"{path} has instructions that {objdump} does not know. Use LLVM 20 or later.")
    for start, name, body in re.findall(r"^([0-9a-f]+) <(.+)>:\n((?:\t.*\n)*)", text, re.M):
        yield name, read_kernel(path, int(start, 16), name, body.splitlines())
