"""A PDF with a line of text."""

from io import BytesIO

_FONT = {"Type": "Font", "Subtype": "Type1", "BaseFont": "Helvetica"}


def pdf(line: str) -> bytes:
    """Return a PDF with one line of text."""
    from pypdf import PdfWriter
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = PdfWriter()
    page = writer.add_blank_page(200, 200)
    font = DictionaryObject({NameObject(f"/{key}"): NameObject(f"/{value}") for key, value in _FONT.items()})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})})
    content = DecodedStreamObject()
    content.set_data(f"BT /F1 12 Tf 20 100 Td ({line}) Tj ET".encode())
    page[NameObject("/Contents")] = content
    written = BytesIO()
    writer.write(written)
    return written.getvalue()
