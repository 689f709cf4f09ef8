"""A page of a roofline: the picture and the text, in one file that asks for nothing outside of it and runs no script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcir.report.roofline_axes import escaped

if TYPE_CHECKING:
    from dcir.report.roofline import Roofline

_STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2rem auto;max-width:1100px;padding:0 1rem;background:#fff;color:#1f2328}"
    "pre{overflow-x:auto;font-size:12px}svg{width:100%;height:auto}"
    "@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(roofline: Roofline) -> str:
    """The page as HTML."""
    title = escaped(f"Roofline of {roofline.model}")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">',
            f"<title>{title}</title><style>{_STYLE}</style></head>",
            f"<body><h1>{title}</h1>",
            roofline.to_svg().rstrip(),
            f"<h2>Figures</h2><pre>{escaped(roofline.to_text(None))}</pre>",
            "</body></html>\n",
        ]
    )
