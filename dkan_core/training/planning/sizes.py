"""Sizes in bytes, and durations, as people write them."""

import re

from dkan_core.errors import ConfigError

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str, *, name: str = "size", most: int = 4 << 30, example: str = "64KB or 16MB") -> int:
    """Return the bytes that a size such as 64KB means.

    Args:
        text: A whole number, and a unit of 1024 if any.
        name: What messages call it.
        most: The largest that is allowed, a whole number of GB.
        example: What messages show.

    Raises:
        ConfigError: It is not a size, or out of range.

    >>> parse_size("64KB"), parse_size("1 m"), parse_size("2 MiB"), parse_size("4096")
    (65536, 1048576, 2097152, 4096)
    """
    match = re.fullmatch(r"(\d{1,12})\s*(?:([KMG])I?)?B?", text.strip().upper())
    size = int(match[1]) * UNITS[match[2] or ""] if match else 0
    if not 1 << 10 <= size <= most:
        raise ConfigError(f"{name} must be from 1KB to {most >> 30}GB, such as {example}, got {text!r}")
    return size


def show_size(size: float) -> str:
    """Return bytes for people, by powers of 1024.

    >>> show_size(65536), show_size(1536 * 1024), show_size(1010 * 1024)
    ('64 KB', '1.5 MB', '1010 KB')
    """
    unit = next((unit for unit in ("G", "M", "K") if size >= UNITS[unit]), "")
    count = size / UNITS[unit]
    return f"{count:.0f} {unit}B" if count >= 100 else f"{count:.3g} {unit}B"


def show_duration(seconds: float) -> str:
    """Return a time for people.

    >>> show_duration(0.7042), show_duration(42.4), show_duration(150), show_duration(8_000), show_duration(1e6)
    ('0.7 s', '42 s', '2.5 min', '2.2 h', '280 h')
    """
    unit, name = next(each for each in ((3600, "h"), (60, "min"), (0, "s")) if seconds >= 2 * each[0])
    count = seconds / (unit or 1)
    return f"{float(f'{count:.2g}'):g} {name}"
