"""`dmondrian grow`, `merge`, `prune`, `copy`, `migrate`, `forget`: a run after it was trained.

Relies on `dmondrian.distributed.grow` and on `dmondrian.checkpoint` for the work.
"""

from __future__ import annotations

import argparse

from dmondrian._text.wording import counted, size
from dmondrian.cli.cluster import connected
from dmondrian.cli.output import Output
from dmondrian.cli.score import metrics_table, metrics_title
from dmondrian.cli.tls import tls_of_arguments
from dmondrian.cli.train import summary_line


def grow(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian grow --help`."""
    from dmondrian import distributed

    tls = tls_of_arguments(arguments)
    with connected(arguments.scheduler, arguments.workers, arguments.threads, tls) as cluster:
        run = distributed.grow(
            arguments.model,
            arguments.n_estimators,
            n_shards=arguments.shards,
            progress=output.follow,
            **cluster,
        )
    output.close_bar()
    output.event("grown", {"run": run.run_url, "metrics": run.metrics, "summary": run.summary})
    trees = counted(arguments.n_estimators, "tree")
    output.text(f"{run.run_url} has {trees}\n  {summary_line(run.summary)}")
    if run.metrics:
        whose = "all trees" if run.summary.get("learned") is not None else "the new trees alone"
        title = f"{whose} ({metrics_title(run.metrics)}):\n"
        output.text(title + metrics_table(run.metrics, "  "))
    return 0


def merge(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian merge --help`."""
    from dmondrian.checkpoint.merging import merge as merge_runs

    run, manifest = merge_runs(arguments.runs, arguments.out)
    trees = run.run_json["n_estimators"]
    output.event("merged", {"run": run.url, "trees": trees, "position": manifest.position})
    output.text(f"{run.url} has {counted(trees, 'tree')} at position {manifest.position:,}")
    return 0


def prune(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian prune --help`."""
    from dmondrian.checkpoint.parts import open_whole
    from dmondrian.checkpoint.pruning import prune as prune_run

    pruned = prune_run(open_whole(arguments.model), arguments.keep, arguments.dry_run)
    output.event(
        "pruned", {"dry_run": arguments.dry_run, "runs": [run.to_json() for run in pruned]}
    )
    verb = "would delete" if arguments.dry_run else "deleted"
    for run in pruned:
        output.text(
            f"{run.url}: {verb} {counted(len(run.positions), 'checkpoint')} and "
            f"{counted(len(run.blobs), 'blob')} ({size(run.n_bytes)}); "
            f"{counted(len(run.kept), 'checkpoint')} {'stays' if len(run.kept) == 1 else 'stay'}"
        )
    return 0


def copy(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian copy --help`."""
    from dmondrian.checkpoint.copying import copy_pieces

    run, n_written = copy_pieces(arguments.model, arguments.out, resumable=True)
    (position,) = run.manifests()
    sizes = run.store.sizes()
    n_bytes = sum(sizes.values())
    output.event(
        "copied", {"run": run.url, "position": position, "objects": len(sizes), "bytes": n_bytes}
    )
    done = "" if n_written else "nothing to do: "
    output.text(
        f"{done}{run.url} has the checkpoint at row {position:,}: "
        f"{counted(len(sizes), 'object')}, {size(n_bytes)}"
    )
    return 0


def migrate(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian migrate --help`."""
    from dmondrian.checkpoint.migrating import migrate as migrate_model

    done = migrate_model(arguments.model, arguments.out)
    facts = {"position": done.position, "blobs": done.blobs, "rewritten": done.rewritten}
    output.event("migrated", {"run": done.run.url, **facts})
    what = f"{done.run.url} has the checkpoint at row {done.position:,}: "
    what += counted(done.blobs, "state")
    if done.was_there:
        output.text(f"nothing to do: {what} compared, all equal")
    else:
        changed = f"{done.rewritten:,} had to change" if done.rewritten else "none had to change"
        output.text(f"{what} written and read back equal; {changed}")
    return 0


def forget(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian forget --help`."""
    from dmondrian import distributed

    tls = tls_of_arguments(arguments)
    with connected(arguments.scheduler, arguments.workers, arguments.threads, tls) as cluster:
        done = distributed.forget(
            arguments.model,
            arguments.out,
            arguments.keys,
            arguments.key,
            progress=output.follow,
            **cluster,
        )
    output.close_bar()
    output.event("forgotten", {"run": done.run.run_url, "certificate": done.certificate})
    output.text(
        f"{done.run.run_url} is without {counted(done.left_out, 'row')}, as if they had never been "
        "there: forgotten.json in it is the certificate, and rows/ has the data without them"
    )
    keys = done.certificate["keys"]
    if missing := keys["in_no_row"]:
        verb = "is" if missing == 1 else "are"
        output.text(f"{counted(missing, 'key')} of {keys['number']:,} {verb} in no row")
    return 0
