"""Make ``unicode_tables.npz`` from the files of the Unicode Character Database.

    python -m gristmill.stages.kernels.generate_unicode UCD_DIRECTORY

The directory is the unpacked ``UCD.zip`` of one Unicode version with ``emoji/`` beside it (Debian's package
``unicode-data`` is laid out the same way). The version found in the files is stored in the table and checked
on loading, so that verdicts never depend on the Python that runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gristmill.stages.kernels.unicode import (
    CATEGORY_NAMES,
    N_CODE_POINTS,
    SCRIPT_NAMES,
    TABLES_PATH,
    WORD_BREAK_NAMES,
)

HANGUL = range(0xAC00, 0xD7A4)


def read_ranges(path: Path, prop: str = "") -> Iterator[tuple[int, int, str]]:
    """Yield ``(first, last, value)`` of a UCD property file; with `prop`, only lines of that property."""
    for line in path.read_text("utf-8").splitlines():
        fields = [field.strip() for field in line.partition("#")[0].split(";")]
        if len(fields) < 2 or (prop and fields[1] != prop):
            continue
        first, _, last = fields[0].partition("..")
        yield int(first, 16), int(last or first, 16), fields[1]


def flag(path: Path, prop: str) -> npt.NDArray[np.bool_]:
    """Return a binary property as a table."""
    table = np.zeros(N_CODE_POINTS, np.bool_)
    for first, last, _ in read_ranges(path, prop):
        table[first : last + 1] = True
    return table


def named(path: Path, names: tuple[str, ...]) -> npt.NDArray[np.uint8]:
    """Return an enumerated property as indexes into `names`; code points not listed are 0."""
    table = np.zeros(N_CODE_POINTS, np.uint8)
    for first, last, value in read_ranges(path):
        table[first : last + 1] = names.index(value)
    return table


class CharacterData:
    """What ``UnicodeData.txt`` says: category, simple lowercase, decomposition and the rest by code point."""

    def __init__(self, directory: Path) -> None:
        self.category = np.full(N_CODE_POINTS, CATEGORY_NAMES.index("Cn"), np.uint8)
        self.lower = np.arange(N_CODE_POINTS, dtype=np.int32)
        self.space = np.zeros(N_CODE_POINTS, np.bool_)
        self.digit = np.zeros(N_CODE_POINTS, np.bool_)
        self.decomposition: dict[int, list[int]] = {}
        self.canonical: set[int] = set()
        start = 0
        for line in (directory / "UnicodeData.txt").read_text("ascii").splitlines():
            fields = line.split(";")
            code = int(fields[0], 16)
            if fields[1].endswith(", First>"):
                start = code
                continue
            first = start if fields[1].endswith(", Last>") else code
            here = slice(first, code + 1)
            self.category[here] = CATEGORY_NAMES.index(fields[2])
            self.space[here] = fields[4] in {"WS", "B", "S"} or fields[2] == "Zs"
            self.digit[here] = bool(fields[7])
            if fields[13]:
                self.lower[code] = int(fields[13], 16)
            if fields[5]:
                parts = fields[5].split()
                if not parts[0].startswith("<"):
                    self.canonical.add(code)
                self.decomposition[code] = [int(part, 16) for part in parts if not part.startswith("<")]
        excluded = flag(directory / "DerivedNormalizationProps.txt", "Full_Composition_Exclusion")
        self.composed = {
            (self.decomposition[code][0], self.decomposition[code][1]): code
            for code in self.canonical
            if len(self.decomposition[code]) == 2 and not excluded[code]
        }

    def decompose(self, code: int) -> list[int]:
        """Return the full compatibility decomposition."""
        if code not in self.decomposition:
            return [code]
        return [last for part in self.decomposition[code] for last in self.decompose(part)]

    def compose(self, first: int, second: int) -> int | None:
        """Return the code point that the pair composes to, Hangul syllables by arithmetic."""
        if 0x1100 <= first < 0x1113 and 0x1161 <= second < 0x1176:
            return HANGUL.start + ((first - 0x1100) * 21 + (second - 0x1161)) * 28
        if first in HANGUL and (first - HANGUL.start) % 28 == 0 and 0x11A7 < second < 0x11C3:
            return first + second - 0x11A7
        return self.composed.get((first, second))

    def nfkc(self, code: int) -> list[int]:
        """Return NFKC of one code point (marks of one decomposition are already in canonical order)."""
        if code in HANGUL:
            return [code]
        out: list[int] = []
        for part in self.decompose(code):
            if out and (pair := self.compose(out[0], part)) is not None:
                out[0] = pair
            else:
                out.append(part)
        return out

    def fold(self) -> npt.NDArray[np.int32]:
        """Return NFKC + simple lowercase where that is one code point, else the simple lowercase."""
        table = self.lower.copy()
        for code in self.decomposition:
            folded = self.nfkc(code)
            if len(folded) == 1:
                table[code] = self.lower[folded[0]]
        for _ in range(3):
            table = table[table]
        return table


def runs(table: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.generic]]:
    """Return a table as run lengths and run values."""
    starts = np.flatnonzero(np.concatenate([[True], table[1:] != table[:-1]]))
    lengths = np.diff(np.append(starts, len(table)))
    return lengths.astype(np.int32), table[starts]


def main(directory: Path) -> None:
    """Read the UCD files under `directory` and write the table beside this module."""
    data = CharacterData(directory)
    header = (directory / "Scripts.txt").read_text("utf-8").splitlines()[0]
    found = re.search(r"-(\d+\.\d+\.\d+)\.txt", header)
    if found is None:
        raise SystemExit(f"{directory}: Scripts.txt does not name its Unicode version")
    tables: dict[str, npt.NDArray[np.generic]] = {
        "CATEGORY": data.category,
        "SCRIPT": named(directory / "Scripts.txt", SCRIPT_NAMES),
        "WORD_BREAK": named(directory / "auxiliary" / "WordBreakProperty.txt", WORD_BREAK_NAMES),
        "IS_SPACE": data.space,
        "IS_DIGIT": data.digit,
        "EXTENDED_PICTOGRAPHIC": flag(directory / "emoji" / "emoji-data.txt", "Extended_Pictographic"),
        "SENTENCE_TERMINAL": flag(directory / "PropList.txt", "Sentence_Terminal"),
    }
    identity = np.arange(N_CODE_POINTS, dtype=np.int32)
    arrays: dict[str, npt.NDArray[np.generic]] = {"version": np.frombuffer(found[1].encode(), np.uint8)}
    for name, table in tables.items():
        arrays[f"{name}.lengths"], arrays[f"{name}.values"] = runs(table)
    for name, mapping in (("LOWER", data.lower), ("FOLD", data.fold())):
        changed = np.flatnonzero(mapping != identity).astype(np.int32)
        arrays[f"{name}.from"], arrays[f"{name}.to"] = changed, mapping[changed]
    with TABLES_PATH.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    print(f"{TABLES_PATH.name}: Unicode {found[1]}, {TABLES_PATH.stat().st_size:,} bytes")  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
