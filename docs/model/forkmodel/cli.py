"""The command line: python3 docs/model --help."""
from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from .check import Result, check
from .mutants import MUTANTS, Mutant, as_json
from .runs import QUICK, RUNS, Run
from .scenario import MODES, OPERATIONS, OPTIONS, ROOT, Scenario
from .state import State

DESCRIPTION = """\
Check the fork protocol (docs/FORK_PROTOCOL.md) by an explicit-state model.

Without a selection the quick set is run. A selection of --operations makes
one search of your own and prints the shortest trace to a violation.
"""
EXAMPLES = """\
examples:
  python3 docs/model --quick
  python3 docs/model --mutants not-resent no-settle
  python3 docs/model --operations snapshot,branch --faults 1
  python3 docs/model --operations branch --faults 1 --option child-finish --mutant finish-kills-early --state
  pypy3 docs/model --full          (the same, some times faster)

exit codes: 0 as expected, 1 a violation, a missed mutant or another number of
states than committed, 2 wrong usage
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list:
        return _list()
    if options.json:
        print(as_json(), end="")
        return 0
    if options.operations is not None:
        return _own_search(parser, options)
    if options.mutants is not None:
        return _mutants(parser, options.mutants)
    if options.full:
        return _all(RUNS)
    return _all(QUICK)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 docs/model",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sets = parser.add_argument_group("committed runs")
    one = sets.add_mutually_exclusive_group()
    one.add_argument("--quick", action="store_true", help="the small runs and every mutant (default)")
    one.add_argument("--full", action="store_true", help="all committed runs and every mutant")
    one.add_argument("--mutants", nargs="*", metavar="NAME", help="mutants only: those named, or all")
    one.add_argument("--list", action="store_true", help="list operations, options, mutants and runs")
    one.add_argument("--json", action="store_true", help="print the mutants as in mutants.json")
    one.add_argument("--operations", metavar="A,B", help="a search of your own: operations in their order")
    own = parser.add_argument_group("with --operations")
    own.add_argument("--mode", choices=MODES, default=ROOT)
    own.add_argument("--faults", type=int, default=1, metavar="N", help="faults in one execution (default 1)")
    own.add_argument("--option", action="append", default=[], choices=sorted(OPTIONS), help="may be repeated")
    own.add_argument("--mutant", action="append", default=[], metavar="NAME", help="take a rule away; may be repeated")
    own.add_argument("--limit", type=int, default=6_000_000, metavar="N", help="give up beyond so many states")
    own.add_argument("--state", action="store_true", help="print the last state of a trace too")
    return parser


def _list() -> int:
    _table("operations", [(name, text) for name, text in OPERATIONS.items()])
    _table("options", [(name, text) for name, text in OPTIONS.items()])
    _table("mutants", [(name, f"section {mutant.section}: {mutant.change}") for name, mutant in MUTANTS.items()])
    _table("runs", [(str(run.states), _describe(run) + (" (quick)" if run in QUICK else "")) for run in RUNS])
    return 0


def _table(title: str, rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    print(f"{title}:")
    for name, text in rows:
        print(f"  {name:{width}}  {text}")


def _describe(run: Run) -> str:
    options = "".join(f" +{option}" for option in run.options)
    return f"{run.mode} {','.join(run.operations)}{options} faults<={run.faults}"


def _all(runs: Sequence[Run]) -> int:
    problems = [_report(_describe(run), run_problem(run)) for run in runs]
    problems += [_report("without: " + mutant.name, mutant_problem(mutant)) for mutant in MUTANTS.values()]
    return _verdict(problems)


def _mutants(parser: argparse.ArgumentParser, names: Sequence[str]) -> int:
    unknown = sorted(set(names) - set(MUTANTS))
    if unknown:
        parser.error(f"unknown mutant {', '.join(unknown)}; see --list")
    chosen = names or list(MUTANTS)
    return _verdict([_report("without: " + name, mutant_problem(MUTANTS[name])) for name in chosen])


Outcome = tuple[Result, str]


def run_problem(run: Run) -> Outcome:
    """Search a committed run; say what is not as committed, if anything."""
    result = check(Scenario(run.mode, run.operations, run.faults, run.options))
    if result.violation:
        return result, f"VIOLATION {result.violation}"
    if result.states != run.states:
        return result, f"{result.states} states, committed are {run.states}"
    return result, ""


def mutant_problem(mutant: Mutant) -> Outcome:
    """Search a mutant's run; say so if it is not caught as committed."""
    run = mutant.run
    result = check(Scenario(run.mode, run.operations, run.faults, run.options, (mutant.name,)))
    if not result.violation:
        return result, "NOT CAUGHT"
    if (result.violation, result.states) != (mutant.violation, run.states):
        return result, f"caught after {result.states} states by another property: {result.violation}"
    return result, ""


def _report(name: str, outcome: Outcome) -> bool:
    result, problem = outcome
    verdict = problem or result.violation or "ok"
    print(f"{'FAIL' if problem else 'ok':4}  {result.states:8}  {result.seconds:6.1f}s  {name}: {verdict}", flush=True)
    return bool(problem)


def _verdict(problems: Sequence[bool]) -> int:
    failures = sum(problems)
    print(f"{len(problems)} searches, {failures} not as expected")
    return 1 if failures else 0


def _own_search(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    operations = [name for name in options.operations.split(",") if name]
    try:
        scenario = Scenario(options.mode, operations, options.faults, options.option, options.mutant)
    except ValueError as problem:
        parser.error(str(problem))
    result = check(scenario, options.limit)
    if result.violation:
        _print_trace(result, print_state if options.state else None)
        return 1
    extent = "all" if result.complete else "NOT all"
    print(f"ok: {result.states} states ({extent}), depth {result.depth}, {result.quiescent} quiescent, {result.seconds:.1f}s")
    return 0 if result.complete else 1


def _print_trace(result: Result, with_state: Callable[[State], None] | None) -> None:
    for number, step in enumerate(result.trace, 1):
        print(f"{number:4}  {step}")
    print(f"VIOLATION {result.violation} ({result.states} states, {result.seconds:.1f}s)")
    if with_state and result.final:
        with_state(result.final)


def print_state(state: State) -> None:
    """Print the fields of a state, one a line."""
    for name, value in vars(state).items():
        shown = sorted(value) if isinstance(value, frozenset) else value
        print(f"  {name} = {shown}")
