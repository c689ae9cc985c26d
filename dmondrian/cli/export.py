"""`dmondrian export`: a model as a file for other programs.

Relies on :mod:`dmondrian.export`; starts no cluster and changes nothing in the run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dmondrian._text.wording import size
from dmondrian.cli.output import Output
from dmondrian.errors import ParameterError


def export(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian export --help`."""
    file = Path(arguments.out)
    if (arguments.to or _format_of(file)) == "c":
        return _c(arguments, file, output)
    from dmondrian.export import to_onnx

    made = to_onnx(arguments.model, file, columns=False if arguments.encoded else None)
    about = {entry.key: entry.value for entry in made.metadata_props}
    values = {
        "model": arguments.model,
        "out": str(file),
        "bytes": file.stat().st_size,
        "inputs": [value.name for value in made.graph.input],
        "outputs": [value.name for value in made.graph.output],
    }
    output.event("exported", values)
    output.text(
        f"{file}: {size(values['bytes'])} of ONNX\n  takes {about['inputs']}\n"
        f"  gives {', '.join(values['outputs'])}"
    )
    return 0


def _format_of(file: Path) -> str:
    """Return the format that a file's ending names: "onnx" or "c"."""
    ending = file.suffix[1:].lower()
    if ending not in ("onnx", "c"):
        raise ParameterError(
            f"--out {file}: expected a file that ends in .onnx or .c, got "
            f"{repr(file.suffix) if ending else 'no ending'}; rename it, or name the format by "
            "--to onnx or --to c"
        )
    return ending


def _c(arguments: argparse.Namespace, file: Path, output: Output) -> int:
    """Write C source."""
    from dmondrian.export import to_c

    to_c(arguments.model, file, name=arguments.name)
    n_bytes = file.stat().st_size
    output.event("exported", {"model": arguments.model, "out": str(file), "bytes": n_bytes})
    output.text(
        f"{file}: {size(n_bytes)} of C99\n  takes encoded features, float, as "
        f"`dmondrian schema` lists them\n  gives {arguments.name}_predict(x, out)"
    )
    return 0
