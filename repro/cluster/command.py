"""A run's complete arguments and environment as text: to be read against the paper, and kept in git.

One line each, `--option values  # source`; what all segments of a run share stands once, what differs follows under
`segment N`. Checkpoint folders stand as STATE/<run>.<segment>, since the real ones carry a hash that says nothing to
a reader. `explain` answers which path a frozen segment's precision takes and why.

Not here: running anything. Reads no torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from repro.cluster import fit
from repro.cluster.arguments import WITHOUT_CONV_KERNELS, Argument, Folders, argument_list, environment
from repro.cluster.frozen import segment_of
from repro.cluster.layout import Layout
from repro.cluster.paths import Decision, decide
from repro.experiments.describe import rule_in_words
from repro.experiments.recipe import GEMM_OPERANDS
from repro.experiments.run import Run
from repro.portable.frozen import FrozenSegment

_SOURCE_COLUMN = 64


def run_text(run: Run, layout: Layout, *, emulate: bool = False) -> str:
    """Everything that the segments of a run are started with, segment by segment where they differ.

    What does not fit the layout stands above as `# error:` or `# warning:`.
    """
    segments = [segment_of(dict(part.frozen), Path(part.folder)) for part in run.segments]
    decision = decide(segments[0].recipe, emulate=emulate)
    lists = [argument_list(s, layout, decision, _symbolic_folders(s)) for s in segments]
    shared = [argument for argument in lists[0] if all(argument in other for other in lists)]
    findings = [fit.check(segment, layout, decision) for segment in segments]
    lines = [f"# layout {layout.name}, path {decision.path}", *_said(decision)]
    lines += [*dict.fromkeys(_finding_line(finding) for of_one in findings for finding in of_one), ""]
    lines += [*_environment_lines(layout, decision), "", *map(_argument_line, shared)]
    lines += _machine_lines(segments[0])
    for segment, arguments in zip(segments, lists, strict=True):
        own = [argument for argument in arguments if argument not in shared]
        lines += ["", f"# segment {segment.content['segment']}", *map(_argument_line, own)]
    return "\n".join(lines) + "\n"


def segment_text(
    segment: FrozenSegment, layout: Layout, *, emulate: bool = False, folders: Folders | None = None
) -> str:
    """One segment's environment and arguments."""
    decision = decide(segment.recipe, emulate=emulate)
    arguments = argument_list(segment, layout, decision, folders or _symbolic_folders(segment))
    lines = [*_environment_lines(layout, decision), "", *map(_argument_line, arguments)]
    return "\n".join([*lines, *_machine_lines(segment)]) + "\n"


def explain(segment: FrozenSegment, layout: Layout, *, emulate: bool = False) -> str:
    """The path of a segment, the reasons, the six operand rules, what does not fit, and the whole command."""
    decision = decide(segment.recipe, emulate=emulate)
    findings = fit.check(segment, layout, decision)
    recipe = segment.recipe
    counts = recipe.bf16_blocks
    lines = [
        f"{segment.name} on layout {layout.name} ({layout.device}): path {decision.path}",
        *_said(decision),
    ]
    lines.append(f"# BF16 blocks: first {counts.first}, last {counts.last} of {segment.model.num_blocks}")
    for gemm, operands in GEMM_OPERANDS.items():
        words = ", ".join(f"{name}: {rule_in_words(recipe.rule(gemm, name))}" for name in operands)
        lines.append(f"#   {gemm:<6} {words}")
    lines += map(_finding_line, findings)
    return "\n".join(lines) + "\n\n" + segment_text(segment, layout, emulate=emulate)


def _symbolic_folders(segment: FrozenSegment) -> Folders:
    content = segment.content
    parent = content["init_from"]
    save = Path("STATE") / f"{content['run']}.{content['segment']}"
    if parent is None:
        return Folders(save)
    load = Path("STATE") / f"{parent['run']}.{parent['segment']}"
    return Folders(save, load, parent["tokens"] // segment.step_tokens)


def _said(decision: Decision) -> Iterable[str]:
    yield from (f"# because {reason}" for reason in decision.reasons)
    yield from (f"# note: {note}" for note in decision.notes)


def _finding_line(finding: fit.Finding) -> str:
    return f"# {finding.level}: {finding.text}"


def _environment_lines(layout: Layout, decision: Decision) -> Iterable[str]:
    for name, value in environment(layout, decision).items():
        yield f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}"


def _machine_lines(segment: FrozenSegment) -> list[str]:
    """What the machine decides, as a comment."""
    return [f"# {_argument_line(WITHOUT_CONV_KERNELS)}"] if "M" in segment.model.pattern else []


def _argument_line(argument: Argument) -> str:
    text = " ".join(map(shlex.quote, argument.words))
    return f"{text:<{_SOURCE_COLUMN}}  # {argument.source}"
