"""The quick set as a test: python3 -m unittest discover -s docs/model"""
import contextlib
import io
import unittest
from pathlib import Path

from forkmodel import cli
from forkmodel.check import NO_WAY_BACK, check
from forkmodel.expansion import DAEMON_STEPS
from forkmodel.mutants import MUTANTS, as_json
from forkmodel.runs import QUICK, RUNS
from forkmodel.scenario import OPERATIONS, OPTIONS, Scenario
from forkmodel.state import State, pack

HERE = Path(__file__).parent


def run_cli(*arguments: str) -> "tuple[int, str]":
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            code = cli.main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue()


class CommittedRuns(unittest.TestCase):
    def test_unchanged_protocol_holds(self) -> None:
        for run in QUICK:
            with self.subTest(run=run):
                result = check(Scenario(run.mode, run.operations, run.faults, run.options))
                self.assertIsNone(result.violation, result.trace)
                self.assertTrue(result.complete)
                self.assertEqual(result.states, run.states)

    def test_every_mutant_is_caught(self) -> None:
        for mutant in MUTANTS.values():
            with self.subTest(mutant=mutant.name):
                run = mutant.run
                result = check(Scenario(run.mode, run.operations, run.faults, run.options, (mutant.name,)))
                self.assertEqual(result.violation, mutant.violation)
                self.assertEqual(result.states, run.states)
                if result.violation != NO_WAY_BACK:
                    self.assertFalse(result.complete)

    def test_mutants_are_caught_for_the_missing_rule(self) -> None:
        """The smallest runs hold when no rule is missing."""
        for run in {m.run._replace(states=0) for m in MUTANTS.values() if m.run.states < 800}:
            with self.subTest(run=run):
                result = check(Scenario(run.mode, run.operations, run.faults, run.options))
                self.assertIsNone(result.violation, result.trace)

    def test_runs_cover_everything(self) -> None:
        self.assertEqual(len(RUNS), 44)
        self.assertEqual(len({run._replace(states=0) for run in RUNS}), len(RUNS))
        self.assertEqual({name for run in RUNS for name in run.operations}, set(OPERATIONS))
        self.assertEqual({name for run in RUNS for name in run.options}, set(OPTIONS))


class Mutants(unittest.TestCase):
    def test_json_is_current(self) -> None:
        self.assertEqual((HERE / "mutants.json").read_text(), as_json())

    def test_sections_exist(self) -> None:
        protocol = (HERE.parent / "FORK_PROTOCOL.md").read_text()
        for mutant in MUTANTS.values():
            with self.subTest(mutant=mutant.name):
                self.assertIn(f"\n## {mutant.section}. ", protocol)

    def test_each_is_used_by_the_model(self) -> None:
        source = "".join(path.read_text() for path in (HERE / "forkmodel").rglob("*.py") if path.name != "mutants.py")
        for name in MUTANTS:
            with self.subTest(mutant=name):
                self.assertIn("m." + name.upper().replace("-", "_"), source)


class Engine(unittest.TestCase):
    def test_pack_and_back(self) -> None:
        packed = pack(Scenario("root", ["branch"]).initial())
        self.assertEqual(pack(State(*packed)), packed)

    def test_a_script_without_operations_has_one_state(self) -> None:
        result = check(Scenario("root", [], faults=0))
        self.assertEqual((result.states, result.quiescent, result.violation), (1, 1, None))

    def test_limit_is_no_verdict(self) -> None:
        result = check(Scenario("root", ["snapshot"], 3), limit=50)
        self.assertFalse(result.complete)
        self.assertIsNone(result.violation)

    def test_trace_is_shortest_and_names_its_faults(self) -> None:
        run = MUTANTS["not-resent"].run
        result = check(Scenario(run.mode, run.operations, run.faults, run.options, ["not-resent"]))
        self.assertEqual(sum(step.startswith("FAULT lose") for step in result.trace), 1, result.trace)
        # Breadth first: what was found beyond the violation is one step deeper at most.
        self.assertIn(result.depth - len(result.trace), (0, 1))

    def test_a_daemon_that_has_no_step_is_reported(self) -> None:
        idle = DAEMON_STEPS["prepare"]
        DAEMON_STEPS["prepare"] = lambda x: None
        self.addCleanup(DAEMON_STEPS.__setitem__, "prepare", idle)
        result = check(Scenario("root", ["snapshot"], faults=0))
        self.assertEqual(result.violation, "I1 a pending call is never answered")

    def test_unknown_names_are_refused(self) -> None:
        for what, mode, operations, options, mutants in (
            ("mode", "rot", "", "", ""),
            ("operation", "root", "snap", "", ""),
            ("option", "root", "", "x", ""),
            ("mutant", "root", "", "", "x"),
        ):
            with self.subTest(what), self.assertRaisesRegex(ValueError, f"unknown {what} .*; known: "):
                Scenario(mode, operations.split(), 1, options.split(), mutants.split())


class CommandLine(unittest.TestCase):
    def test_trace_of_a_mutant(self) -> None:
        code, out = run_cli("--operations", "snapshot", "--faults", "0", "--mutant", "no-settle", "--state")
        self.assertEqual(code, 1)
        self.assertIn("   1  parent calls snapshot", out)
        self.assertIn("VIOLATION I8", out)
        self.assertIn("  sandbox = running", out)

    def test_own_search(self) -> None:
        code, out = run_cli("--operations", "snapshot", "--faults", "1")
        self.assertEqual(code, 0, out)
        self.assertRegex(out, r"^ok: 730 states \(all\)")

    def test_named_mutants(self) -> None:
        code, out = run_cli("--mutants", "no-settle", "not-resent")
        self.assertEqual(code, 0, out)
        self.assertIn("2 searches, 0 not as expected", out)

    def test_wrong_usage(self) -> None:
        for arguments in (("--mutants", "no-such"), ("--operations", "no-such"), ("--quick", "--full")):
            with self.subTest(arguments=arguments):
                self.assertEqual(run_cli(*arguments)[0], 2)

    def test_list_and_json(self) -> None:
        code, out = run_cli("--list")
        self.assertEqual(code, 0)
        for name in (*OPERATIONS, *OPTIONS, *MUTANTS):
            self.assertIn(name, out)
        self.assertEqual(run_cli("--json"), (0, as_json()))


if __name__ == "__main__":
    unittest.main()
