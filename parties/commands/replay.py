"""``parties replay``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from parties import __version__
from parties.codec import to_json
from parties.commands.errors import EXIT_MISTAKE, EXIT_OK, MistakeError
from parties.commands.names import NameType
from parties.model import Decision
from parties.policies.oracle import Oracle
from parties.policies.registry import POLICIES
from parties.record import Header, RecordError, read_record
from parties.replay import Comparison, Judged, ReplayError, policy_of, replay

EXIT_DIFFERS = 3
SHOWN_DIFFERENCES = 20
PROGRESS_TICKS = 5_000
VERSION = 1


@click.command("replay")
@click.argument("record", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    "name",
    type=NameType("policy", lambda: POLICIES, free=lambda name: name == Oracle.name),  # whose message says more
    help="Judge this policy.  [default: the one of the record]",
)
@click.option("--seed", type=int, help="Of the policy's random choices.  [default: the one of the record]")
@click.option(
    "--differences", "limit", type=click.IntRange(min=0), default=SHOWN_DIFFERENCES, show_default=True, help="How many to show."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay_command(record: Path, *, name: str | None, seed: int | None, limit: int, as_json: bool) -> int:
    """Put the observations of RECORD through a policy and say where its decisions differ from the recorded ones.

    Every interval is judged on what really was: the partition is the recorded one, whatever the policy would have made of it.
    RECORD may be gzipped.

    Exit code 0: replayed; 3: the record's own policy and seed do not repeat its decisions; 2: the record is damaged (the intervals
    before the damage are replayed and counted), or the policy cannot be judged on it.

    \b
    Examples:
      parties replay run.jsonl                    do the decisions repeat, byte for byte?
      parties replay run.jsonl --policy equal     what would another policy have done?
      parties replay run.jsonl --policy parties --seed 2 --json | jq .services
    """  # noqa: D301 - click reads \b as "leave these lines as they are"
    header, ticks = read_record(record)
    comparison, damage = Comparison.of(header, limit=limit), None
    try:
        policy = policy_of(header, name, seed)
        for judged in _shown(replay(header, ticks, policy)):
            comparison.add(judged)
    except ReplayError as error:
        raise MistakeError(f"{record}: {error}") from error
    except RecordError as error:
        damage = str(error)
    result = Result(
        record, header, name or header.settings.policy, header.settings.seed if seed is None else seed, comparison, damage
    )
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        click.echo("\n".join(result.lines()))
    if damage:
        click.echo(f"parties: {damage}", err=True)
    return result.exit_code


def _shown(judged: Iterable[Judged]) -> Iterator[Judged]:
    """Count on a terminal how far it is: ten hours take a good quarter of a minute."""
    terminal = sys.stderr.isatty()
    number = 0
    for number, one in enumerate(judged, 1):
        if terminal and number % PROGRESS_TICKS == 0:
            click.echo(f"\r{number} intervals", nl=False, err=True)
        yield one
    if terminal and number >= PROGRESS_TICKS:
        click.echo("\r\033[K", nl=False, err=True)


@dataclass(frozen=True, slots=True)
class Result:
    """What is said of a replay. ``damage`` is where the record ended before its time."""

    record: Path
    header: Header
    policy: str
    seed: int
    comparison: Comparison
    damage: str | None

    @property
    def own(self) -> bool:
        """Whether the record's own policy and seed were replayed, so that every decision has to be the same."""
        return (self.policy, self.seed) == (self.header.settings.policy, self.header.settings.seed)

    @property
    def exit_code(self) -> int:
        """A decision that does not repeat weighs more than a record that is cut short."""
        if self.own and self.comparison.identical < self.comparison.ticks:
            return EXIT_DIFFERS
        return EXIT_OK if self.damage is None else EXIT_MISTAKE

    def lines(self) -> list[str]:
        """The text for people: one line if everything is as it was, else tables and the first differences."""
        found, settings = self.comparison, self.header.settings
        if not found.ticks:
            return [f"{self.record}: no intervals to replay"]
        if found.identical == found.ticks:
            return [f"{self.record}: all {found.ticks} decisions are the same, byte for byte ({self.policy}, seed {self.seed})"]
        run = f"{found.ticks} intervals of {settings.policy} (seed {settings.seed})"
        head = [f"{self.record}: {run}, replayed through {self.policy} (seed {self.seed})"]
        if self.own:
            head.append(f"THE DECISIONS DO NOT REPEAT; {_origin(self.header)}")
        return [
            *head,
            f"identical {found.identical}, same moves for another reason {found.same_moves}, other moves {found.different}",
            "",
            *_columns(("reason", "recorded", "replayed", "both"), self._reason_rows()),
            "",
            *_columns(("service", "upsized", "would be", "downsized", "would be"), self._service_rows()),
            "",
            *(line for one in found.differences for line in _difference(one)),
            *([f"and {found.left_out} more"] if found.left_out else []),
        ]

    def as_json(self) -> dict[str, Any]:
        """The object that --json prints."""
        found, settings = self.comparison, self.header.settings
        return {
            "version": VERSION,
            "record": str(self.record),
            "platform": self.header.platform,
            "recorded": {"policy": settings.policy, "seed": settings.seed, "parties_version": self.header.parties_version},
            "replayed": {"policy": self.policy, "seed": self.seed, "parties_version": __version__},
            "damage": self.damage,
            "ticks": found.ticks,
            "identical": found.identical,
            "same_moves": found.same_moves,
            "different": found.different,
            "reasons": {str(reason): to_json(count) for reason, count in found.reasons.items()},
            "changes": [
                {"recorded": str(recorded), "replayed": str(replayed), "ticks": count}
                for (recorded, replayed), count in found.changes.most_common()
            ],
            "services": {name: to_json(count) for name, count in found.services.items()},
            "differences": [to_json(one) for one in found.differences],
            "differences_left_out": found.left_out,
        }

    def _reason_rows(self) -> list[tuple[str, ...]]:
        ordered = sorted(self.comparison.reasons.items(), key=lambda item: (-max(item[1].recorded, item[1].replayed), item[0]))
        return [(str(reason), str(count.recorded), str(count.replayed), str(count.both)) for reason, count in ordered]

    def _service_rows(self) -> list[tuple[str, ...]]:
        return [
            (name, str(count.recorded_up), str(count.replayed_up), str(count.recorded_down), str(count.replayed_down))
            for name, count in self.comparison.services.items()
        ]


def _origin(header: Header) -> str:
    """Where to look for the cause."""
    if header.parties_version != __version__:
        return f"the record is of parties {header.parties_version}, this is {__version__}: the policy may have changed since"
    return "same version: either the record was changed, or the policy depends on something that is not recorded"


def _difference(one: Judged) -> list[str]:
    """One below the other: several moves make long lines."""
    recorded, replayed = _decision_text(one.recorded), _decision_text(one.replayed)
    if recorded == replayed:
        replayed = f"{replayed}; other slack"
    return [f"tick {one.tick}, {one.time_s:.1f} s", f"  recorded  {recorded}", f"  replayed  {replayed}"]


def _decision_text(decision: Decision) -> str:
    from parties.live import amount_text  # noqa: PLC0415 - it loads rich, which nothing else here needs

    moves = "; ".join(
        f"{move.pool} {amount_text(move.pool.resource, move.amount)} {move.giver or '-'} -> {move.taker or '-'}"
        for move in decision.moves
    )
    subject = f" ({decision.subject})" if decision.subject else ""
    return f"{decision.reason}{subject}" + (f": {moves}" if moves else "")


def _columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Left-aligned columns that are as wide as they have to be."""
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
