"""Parts of a page that nobody looks at yet, packed: a tenth of their size, and no time of the browser's before they are opened."""

import base64
import json
import zlib

PARTS = 20
"""In one pack: what is unpacked to show one of them."""


class Packer:
    """Packs parts as they come: each pack is a JSON list of texts, in zlib's format, as base64.

    Args:
        most: Bytes that the packs may have together, as base64.
        share: Of them that parts may use which are not urgent.
    """

    def __init__(self, most: int, share: float = 0.6) -> None:
        self._most = most
        self._share = share
        self._held: list[str] = []
        self._size = 0
        self.packs: list[str] = []

    def takes(self, *, urgent: bool) -> bool:
        """Tell whether there is room for another part."""
        return self._size < self._most * (1.0 if urgent else self._share)

    def add(self, part: str) -> tuple[int, int]:
        """Take a part, and return its place: the pack, and where in it."""
        place = (len(self.packs), len(self._held))
        self._held.append(part)
        if len(self._held) == PARTS:
            self.close()
        return place

    def close(self) -> None:
        """Pack what is held."""
        if self._held:
            text = json.dumps(self._held, ensure_ascii=False, separators=(",", ":"))
            packed = base64.b64encode(zlib.compress(text.encode(errors="replace"), 9)).decode()
            self.packs.append(packed)
            self._size += len(packed)
            self._held = []
