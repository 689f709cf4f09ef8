"""The verbs read what people type, call the driver, and turn errors into text and exit codes."""

import contextlib
import json
import re
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dcir.driver
import dcir.driver.measure
from dcir import errors
from dcir.cache import Cache, key_of
from dcir.cli import common, doctor
from dcir.cli.main import main


class Report:
    def to_text(self):
        return "two kernels\n"

    def to_json(self):
        return {"kernels": 2}


class Table:
    def to_text(self, rows):
        return f"{rows} rows"

    def to_json(self):
        return {}


@dataclass
class Result:
    ok: bool = True
    error: float = 1e-7
    tolerance: float = 1e-5
    details: object = ()


@dataclass
class Pass:
    name: str = "fuse-epilogue"
    tier: int = 2
    summary: str = "fuses"
    options: object = None
    origin: str = "dcir"


@pytest.fixture
def api(monkeypatch):
    """A driver that records its calls."""
    calls = []

    def answer(name, result):
        def function(*arguments, **settings):
            calls.append((name, arguments, settings))
            return result(*arguments, **settings) if callable(result) else result

        return function

    stub = types.ModuleType("dcir.driver.api")
    stub.calls = calls
    stub.answer = lambda name, result: setattr(stub, name, answer(name, result))
    stub.answer("compile_file", Report())
    stub.answer("explain_file", Report())
    stub.answer("bench_file", Report())
    stub.answer("bench_stream", Report())
    stub.answer("bench_throughput", Report())
    stub.answer("check_file", Result())
    stub.answer("bisect_file", types.SimpleNamespace(finding=None, calls=0, path=None))
    stub.answer("list_passes", [Pass(options={"width": 4}), Pass(options=["a"]), Pass()])
    stub.answer("run_file", lambda model, inputs: {"y": np.ones((2, 3), np.float32)})
    for package in (dcir.driver, dcir.driver.measure):
        monkeypatch.setitem(sys.modules, f"{package.__name__}.api", stub)
        monkeypatch.setattr(package, "api", stub, raising=False)
    return stub


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"")
    return str(path)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path / "cache"))
    return Cache.default()


def call(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def raising(error):
    def fail(*arguments, **settings):
        raise error

    return fail


@pytest.mark.parametrize("level", [["-O3"], ["-O", "3"], ["-OO3"], ["-O", "O3"]])
def test_levels_as_compilers_take_them(api, model, level):
    assert call("compile", model, *level).exit_code == 0
    assert api.calls[0][2]["level"] == 3


def test_compile_passes_everything_on(api, model):
    done = call(
        *("compile", model, "-o", "out.dcir", "--shape", "x=[b, 3,224]", "--shape", "n=", "--until", "fuse"),
        *("--strict", "--verify", "passes", "--target", "dace", "--bound", "b=1..64", "--bound", "d k=2.."),
        *("--threads", "16", "--arch", "sm_80", "--arch", "sm_90a"),
    )
    assert done.exit_code == 0, done.output
    assert done.output == "two kernels\nwrote out.dcir\n"
    assert api.calls == [
        (
            "compile_file",
            (Path(model), Path("out.dcir")),
            {
                "level": 4,
                "target": "dace",
                "shapes": {"x": ["b", 3, 224], "n": []},
                "bounds": {"b": (1, 64), "d k": (2, None)},
                "threads": 16,
                "arch": ("sm_80", "sm_90a"),
                "until": "fuse",
                "strict": True,
                "verify": "passes",
                "progress": None,
            },
        )
    ]


def test_compile_names_its_output_after_the_model(api, model):
    done = call("compile", model, "--json")
    assert json.loads(done.output) == {"output": model.replace(".onnx", ".dcir"), "kernels": 2}


@pytest.mark.parametrize(
    "arguments",
    [["-O5"], ["-Ofast"], ["--shape", "x"], ["--shape", "x=[a-b]"], ["--target", "tpu"], ["--no-such-option"]],
)
def test_usage_errors_exit_with_two(api, model, arguments):
    assert call("compile", model, *arguments).exit_code == 2
    assert api.calls == []


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "--seconds", "nan"), ("bench", "--threads", str(1 << 40)), ("compile", "--threads", str(1 << 40)),
        ("scaling", "--bucket", "nan"), ("scaling", "--bucket", "inf"), ("scaling", "--seconds", "inf"),
        ("plan", "--seconds", "nan"), ("profile", "--seconds", "inf"), ("view", "--seconds", "nan"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_numbers_that_are_none_are_usage_errors(api, model, words):
    done = call(words[0], model, *words[1:])
    assert done.exit_code == 2 and words[1] in done.output and not api.calls


def test_a_missing_model_and_an_unknown_verb_are_usage_errors():
    assert call("compile", "no-such-file.onnx").exit_code == 2
    assert call("fly").exit_code == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.VerificationFailed("numbers changed"), 1),
        (errors.OptionError("no such pass"), 2),
        (errors.InvalidModel("broken"), 2),
        (errors.CompilerNotFound("no compiler"), 3),
        (errors.CacheUnavailable("no folder"), 3),
        (OSError(28, "No space left on device"), 3),
        (errors.Unsupported.collect([("Foo", "node a"), ("Bar", "node b")]), 4),
    ],
)
def test_exit_codes(api, model, error, code):
    api.answer("compile_file", raising(error))
    done = call("compile", model)
    assert done.exit_code == code
    assert done.stderr.startswith(f"dcir: {type(error).__name__}: ")
    assert "Traceback" not in done.output
    done = call("compile", model, "--json")
    assert json.loads(done.stdout)["error"]["kind"] == type(error).__name__


@pytest.mark.parametrize("wrong", [("-O", "nine"), ("--shape", "x"), ("--nosuch",)])
def test_wrong_arguments_are_an_object_too(model, wrong):
    done = call("compile", model, "--json", *wrong)
    told = json.loads(done.stdout)["error"]
    assert done.exit_code == 2 and told["message"] and "Usage:" in done.stderr
    assert set(told) == {"kind", "message", "where", "try", "details"}
    assert not call("compile", model, *wrong).stdout


def test_debug_lets_the_traceback_through(api, model):
    error = errors.InvalidModel("broken")
    api.answer("compile_file", raising(error))
    assert call("compile", model, "--debug").exception is error


def test_names_from_models_cannot_steer_the_terminal(api, model):
    api.answer("compile_file", raising(errors.InvalidModel("bad \x1b[2J name")))
    assert "\x1b" not in call("compile", model).stderr


NOTHING = {"operator": None, "by": None, "kind": None}


def test_explain(api, model):
    assert call("explain", model, "-O2").output == "two kernels\n"
    assert json.loads(call("explain", model, "--json").output) == {"kernels": 2}
    assert api.calls[0] == (
        "explain_file",
        (Path(model),),
        {"level": 2, "target": "cpp", "shapes": {}, "strict": False, "remarks": False, "about": NOTHING, "skip": ()},
    )


def test_explain_place_by_place(api, model):
    assert call("explain", model, "--remarks", "--at", "conv_1", "--skip", "a@b", "--skip", "a@c").exit_code == 0
    settings = api.calls[0][2]
    assert settings["remarks"] is True and settings["about"] == NOTHING | {"operator": "conv_1"}
    assert settings["skip"] == ("a@b", "a@c")
    assert call("explain", model, "--pass", "fuse-epilogues", "--kind", "missed").exit_code == 0
    assert api.calls[1][2]["remarks"] is True  # who asks about some wants to see them
    assert api.calls[1][2]["about"] == NOTHING | {"by": "fuse-epilogues", "kind": "missed"}


def test_bench(api, model):
    words = ["--against", "eager, ort", "--seconds", "0.5", "--threads", "2", "--percentiles", "90,99.9", "-O2"]
    assert call("bench", model, *words).exit_code == 0
    settings = {"level": 2, "shapes": {}, "batch": None, "percentiles": [90.0, 99.9], "progress": None}
    assert api.calls == [("bench_file", (model, ["eager", "ort"], 0.5, 2), settings)]
    assert call("bench", model, "--percentiles", "101").exit_code == 2


def test_bench_of_calls_at_the_same_time(api, model):
    words = ["--hint", "throughput", "--streams", "3", "--against", "ov", "-O3"]
    assert call("bench", model, *words).exit_code == 0
    settings = {"streams": 3, "level": 3, "shapes": {}, "batch": None, "progress": None}
    assert api.calls == [("bench_throughput", (model, ["ov"], 5.0, None), settings)]
    for wrong in (["--streams", "2"], [*words, "--sizes", model], [*words, "--percentiles", "90"]):
        assert call("bench", model, *wrong).exit_code == 2


def test_bench_over_a_stream_of_sizes(api, model):
    assert call("bench", model, "--sizes", model, "--against", "ort", "--percentiles", "90").exit_code == 0
    settings = {"level": 4, "shapes": {}, "percentiles": [90.0], "progress": None}
    assert api.calls == [("bench_stream", (model, model, ["ort"], 5.0, None), settings)]
    done = call("bench", model, "--sizes", model, "--batch", "4")
    assert done.exit_code == 2 and "leave out --batch" in done.output


def test_profile(api, model):
    api.answer("profile_file", Table())
    assert call("profile", "net.py:make", "--rows", "7", "--batch", "4", "--seconds", "1").output == "7 rows\n"
    settings = {"level": 4, "shapes": {}, "batch": 4, "seconds": 1.0, "threads": None, "progress": None}
    assert api.calls == [("profile_file", ("net.py:make",), settings)]


class Picture(Table):
    def save(self, path):
        Path(path).write_text("drawn")


def test_a_profile_is_written_as_a_trace(api, model, tmp_path):
    api.answer("profile_file", Picture())
    done = call("profile", "net.py:make", "-o", tmp_path / "t.json")
    assert done.output.endswith(f"wrote {tmp_path / 't.json'}\n") and (tmp_path / "t.json").read_text() == "drawn"
    done = call("profile", "net.py:make", "-o", tmp_path / "t.svg")
    assert done.exit_code == 2 and "t.json" in done.output and len(api.calls) == 1


def test_roofline(api, model, tmp_path):
    api.answer("roofline_file", Picture())
    words = ["--threads", "1,2", "--batch", "1,4,16", "--levels", "0..4", "--mode", "train", "--seconds", "0.5"]
    words += ["--precision", "bf16"]
    done = call("roofline", "net.py:make", *words, "--rows", "7", "-o", tmp_path / "r.svg")
    assert done.output == f"7 rows\nwrote {tmp_path / 'r.svg'}\n" and (tmp_path / "r.svg").read_text() == "drawn"
    settings = {
        "threads": [1, 2], "batches": [1, 4, 16], "levels": [0, 1, 2, 3, 4], "mode": "train", "shapes": {}, "seconds": 0.5,
        "progress": None, "precision": "bf16",
    }  # fmt: skip
    assert api.calls == [("roofline_file", ("net.py:make",), settings)]
    assert json.loads(call("roofline", model, "--json", "-o", tmp_path / "r.html").output)["output"].endswith("r.html")
    assert api.calls[1][2]["levels"] == [4] and api.calls[1][2]["threads"] == api.calls[1][2]["batches"] == []


def test_roofline_advises(api, model):
    api.answer("advise_file", Picture())
    for words, apply in ((["--advise"], 0), (["--apply", "2"], 2), (["--apply"], 3)):
        assert call("roofline", "net.py:make", "--optimiser", "adam", *words).exit_code == 0
        ((name, arguments, settings),) = api.calls[-1:]
        assert (name, arguments) == ("advise_file", ("net.py:make",))
        assert settings == {
            "threads": [], "batches": [], "levels": [4], "mode": "infer", "shapes": {}, "seconds": 1.0, "progress": None,
            "optimiser": "adam", "apply": apply, "update": None, "memory": None,
        }  # fmt: skip
    words = ["--mode", "train", "--advise", "--update", "foreach", "--memory", "2GiB"]
    assert call("roofline", "net.py:make", *words).exit_code == 0
    assert (api.calls[-1][2]["update"], api.calls[-1][2]["memory"]) == ("foreach", 2 << 30)


@pytest.mark.parametrize(
    "words",
    [("--threads", "0"), ("--threads", "a"), ("--batch", "1,,2"), ("--batch", "4..1"), ("--batch", "1..4000"),
     ("--levels", "0..5"), ("--levels", ""), ("--mode", "serve"), ("-o", "r.png"), ("--apply", "0"),
     ("--advise", "--optimiser", "lion"), ("--precision", "int8"), ("--advise", "--precision", "bf16"),
     ("--memory", "1GB"), ("--update", "loop"), ("--optimiser", "adam"), ("--threads", "1,99999"), ("--seconds", "nan"),
     ("--advise", "--memory", "lots"), ("--advise", "--update", "quick")],
)  # fmt: skip
def test_roofline_refuses_before_it_measures(api, model, words):
    api.answer("roofline_file", Picture())
    assert call("roofline", model, *words).exit_code == 2 and not api.calls


def test_scaling(api, model):
    api.answer("scaling_file", Report())
    words = ["--nodes", "1..6,12", "--link", "25Gbit,10us", "--bucket", "1", "--loss", "cost", "--optimiser", "adam"]
    assert (
        call("scaling", "net.py:make", *words, "--beside", "1", "--no-eager", "--threads", "2").output
        == "two kernels\n"
    )
    ((name, arguments, settings),) = api.calls
    assert (name, arguments) == ("scaling_file", ("net.py:make",))
    assert settings.pop("nodes") == [1, 2, 4, 6, 12]
    assert settings == {
        "link": "25Gbit,10us", "level": 4, "shapes": {}, "batch": None, "seconds": 2.0, "threads": 2, "loss": "cost",
        "optimiser": "adam", "bucket_mib": 1.0, "algorithm": "ring", "beside": 1, "eager": False, "progress": None,
    }  # fmt: skip
    assert call("scaling", model).exit_code == 0
    assert api.calls[1][2]["nodes"] == [1, 2, 4, 8, 16, 32, 64] and api.calls[1][2]["link"] == "10Gbit"


def test_scaling_is_checked(api, model):
    api.answer("scaling_check_file", Report())
    words = ["--check", "2,4", "--optimiser", "adam", "--bucket", "1", "--no-eager", "--threads", "1"]
    assert call("scaling", "net.py:make", *words).output == "two kernels\n"
    assert api.calls == [
        (
            "scaling_check_file", ("net.py:make",), {
                "nodes": [2, 4], "level": 4, "shapes": {}, "batch": None, "seconds": 2.0, "threads": 1, "loss": None,
                "optimiser": "adam", "bucket_mib": 1.0, "algorithm": "ring", "eager": False, "progress": None,
            },
        )
    ]  # fmt: skip
    for more in (["--link", "10Gbit"], ["--nodes", "4"], ["--beside", "1"]):
        done = call("scaling", model, "--check", "2", *more)
        assert done.exit_code == 2 and f"without {more[0]}" in done.output and len(api.calls) == 1


@pytest.mark.parametrize("nodes", ["", "0", "8..2", "1..", "two", "1,,2", "1..99999999"])
def test_numbers_of_processes_that_are_none(nodes, api, model):
    done = call("scaling", model, "--nodes", nodes)
    assert done.exit_code == 2 and "1..64" in done.output and api.calls == []


def test_plan(api, model):
    api.answer("plan_file", Table())
    words = ["--mode", "train", "--cores", "2x64", "--threads", "96", "--seconds", "0.5", "--rows", "7", "--batch", "4"]
    assert call("plan", "net.py:make", *words).output == "7 rows\n"
    ((name, arguments, settings),) = api.calls
    assert (name, arguments) == ("plan_file", ("net.py:make",))
    assert str(settings.pop("cores")) == "128 cores in 2 sockets"
    assert settings == {
        "level": 4, "shapes": {}, "batch": 4, "mode": "train", "seconds": 0.5, "threads": 96, "progress": None, "sweep": False,
    }  # fmt: skip
    assert call("plan", model).exit_code == 0 and api.calls[1][2]["cores"] is None
    assert call("plan", model, "--measure").exit_code == 0 and api.calls[2][2]["sweep"] is True


@pytest.mark.parametrize(
    "words",
    [("--cores", "0"), ("--cores", "2x"), ("--mode", "serve"), ("--threads", "0"), ("--cores", "2", "--measure")],
)
def test_plan_refuses_before_it_measures(words, api, model):
    api.answer("plan_file", Table())
    assert call("plan", model, *words).exit_code == 2 and not api.calls


def test_check_says_one_for_a_wrong_result(api, model):
    done = call("check", model, "--seed", "7")
    assert done.exit_code == 0
    assert "agrees: error 1e-07, tolerance 1e-05" in done.output
    settings = {"level": 4, "verify": "off", "seed": 7, "shapes": {}, "bounds": {}, "progress": None}
    assert api.calls[0][2] == settings
    api.answer("check_file", Result(ok=False, error=0.5, details={"output": "y"}))
    done = call("check", model)
    assert done.exit_code == 1
    assert "DIFFERS" in done.output
    assert "output  y" in done.output
    assert json.loads(call("check", model, "--json").output)["ok"] is False


@pytest.mark.parametrize(
    ("verb", "still"),
    [
        ("bench", True),
        ("check", False),
        ("plan", True),
        ("profile", True),
        ("roofline", True),
        ("scaling", True),
        ("tune", True),
    ],
)
def test_verbs_that_take_long_show_it(verb, still, api, model, monkeypatch):
    wanted = []

    @contextlib.contextmanager
    def bar(*, plain, still=False):
        wanted.append((plain, still))
        yield "a bar"

    monkeypatch.setattr(f"dcir.cli.{verb}.progress_bar", bar)
    api.answer("profile_file", Table())
    api.answer("roofline_file", Table())
    api.answer("plan_file", Table())
    api.answer("scaling_file", Report())
    api.answer("tune_file", Report())
    for words in ((), ("--plain",)):
        assert call(verb, model, *words).exit_code == 0
    assert [settings["progress"] for _, _, settings in api.calls] == ["a bar"] * 2
    assert wanted == [(False, still), (True, still)]


def test_check_takes_sizes_and_bounds(api, model):
    assert call("check", model, "--shape", "x=[b,3]", "--bound", "b=2..9").exit_code == 0
    settings = api.calls[0][2]
    assert settings["shapes"] == {"x": ["b", 3]} and settings["bounds"] == {"b": (2, 9)}
    done = call("check", model, "--bisect", "--bound", "b=2..9")
    assert done.exit_code == 2 and "--shape" in done.output and len(api.calls) == 1


@pytest.mark.parametrize("seed", [2**64, "x"])
def test_a_seed_that_no_generator_takes(seed, api, model):
    done = call("check", model, "--seed", seed)
    assert done.exit_code == 2 and "--seed" in done.output


def test_check_bisects(api, model, tmp_path):
    assert call("check", model, "--bisect", "-o", tmp_path / "r.py").exit_code == 0
    assert api.calls == [("bisect_file", (Path(model), tmp_path / "r.py"), {"level": 4, "seed": 0, "shapes": {}})]
    passes = [types.SimpleNamespace(name="fuse-siblings")]
    finding = types.SimpleNamespace(
        kind="pass", culprit="pass fuse-siblings", passes=passes, where="", error=0.5, tolerance=1e-6
    )
    api.answer("bisect_file", types.SimpleNamespace(finding=finding, calls=2, path=Path("r.py")))
    done = call("check", model, "--bisect")
    assert done.exit_code == 1
    assert "pass fuse-siblings changes numbers" in done.output and "r.py, 2 operators" in done.output
    data = json.loads(call("check", model, "--bisect", "--json").output)
    assert data["found"] == {"kind": "pass", "culprit": "pass fuse-siblings", "passes": ["fuse-siblings"]}


def test_passes(api):
    lines = call("passes", "-O2").output.splitlines()
    assert lines[0].split() == ["tier", "pass", "what", "it", "does", "options"]
    assert lines[1].split() == ["2", "fuse-epilogue", "fuses", "width=4"]
    assert json.loads(call("passes", "--json").output)["passes"][0]["options"] == {"width": 4}


def test_passes_of_other_packages_say_where_they_come_from(api):
    api.answer("list_passes", [Pass(), Pass("count", origin="counting 1.2")])
    lines = call("passes").output.splitlines()
    assert lines[0].split()[:3] == ["tier", "pass", "from"]
    assert lines[1].split()[:3] == ["2", "fuse-epilogue", "dcir"]
    assert lines[2].split()[:4] == ["2", "count", "counting", "1.2"]
    assert [p["origin"] for p in json.loads(call("passes", "--json").output)["passes"]] == ["dcir", "counting 1.2"]


def test_run_reads_by_name_or_in_order(api, model, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    path = tmp_path / "x.npy"
    assert call("run", model, "--input", f"a={path}").exit_code == 0
    assert call("run", model, "--input", path, "--input", path).exit_code == 0
    (_, (_, by_name), _), (_, (_, in_order), _) = api.calls
    assert list(by_name) == ["a"]
    assert [array.tolist() for array in in_order] == [[0, 1, 2]] * 2
    mixed = call("run", model, "--input", path, "--input", f"a={path}")
    assert mixed.exit_code == 2
    assert "not both" in mixed.stderr
    twice = call("run", model, "--input", f"a={path}", "--input", f"a={path}")
    assert twice.exit_code == 2 and "input a is given twice" in twice.stderr


def test_run_never_unpickles(api, model, tmp_path):
    np.save(tmp_path / "x.npy", np.array([print], dtype=object), allow_pickle=True)
    done = call("run", model, "--input", tmp_path / "x.npy")
    assert done.exit_code == 2
    assert "not an array file" in done.stderr


@pytest.mark.parametrize("content", [b"", b"hello", b"\x93NUMPY\x01\x00"])
def test_run_refuses_files_that_are_no_arrays(api, model, tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    assert call("run", model, "--input", tmp_path / "x.npy").exit_code == 2


def test_run_saves_inside_the_folder_whatever_the_names(api, model, tmp_path):
    names = ["../../etc/y", "/abs", "a/b", "a_b", "a.b", "", "y"]
    results = {name: np.full(2, number) for number, name in enumerate(names)}
    api.answer("run_file", lambda model, inputs: results)
    folder = tmp_path / "out"
    done = call("run", model, "--output", folder, "--json")
    files = {item["name"]: item["file"] for item in json.loads(done.output)["outputs"]}
    assert {Path(path).parent for path in files.values()} == {folder}
    assert len(set(files.values())) == len(names)
    assert all((np.load(path) == results[name]).all() for name, path in files.items())
    assert files["y"] == str(folder / "y.npy")


def test_cache_verbs(cache):
    for number in range(3):
        cache.get_or_build("object", key_of(str(number)), ".o", lambda draft: draft.write_text("x" * 1000) and None)
    assert json.loads(call("cache", "info", "--json").output)["bytes"] == 3000
    assert "3, 3.0 kB" in call("cache", "info").output
    assert len(call("cache", "ls").output.splitlines()) == 4
    assert call("cache", "prune", "--older-than", "1h").output == "removed 0 files, 0 B\n"
    assert call("cache", "prune", "--max-size", "2kB").output == "removed 1 files, 1.0 kB\n"
    assert call("cache", "clear").output == "removed 2 files, 2.0 kB\n"
    assert json.loads(call("cache", "ls", "--json").output) == {"files": []}


@pytest.mark.parametrize("arguments", [[], ["--max-size", "much"], ["--older-than", "long"]])
def test_cache_prune_wants_a_size_or_an_age(cache, arguments):
    assert call("cache", "prune", *arguments).exit_code == 2


def test_doctor_says_what_is_well_and_what_to_do(cache, monkeypatch):
    monkeypatch.setattr(doctor, "_package", lambda name, remedy: doctor.Diagnosis(name, True, "1.0"))
    done = call("doctor", "--json")
    assert done.exit_code == 0, done.output
    findings = {item["name"]: item for item in json.loads(done.output)["findings"]}
    assert "threads ran" in findings["openmp"]["found"]
    assert "mode 700" in findings["cache"]["found"]
    monkeypatch.setenv("DCIR_CXX", "/no/compiler")
    done = call("doctor")
    assert done.exit_code == 3
    lines = done.output.splitlines()
    bad = next(number for number, line in enumerate(lines) if line.startswith("BAD  compiler"))
    assert "try an absolute path" in lines[bad + 1]


def test_doctor_finds_a_missing_package():
    finding = doctor._package("no_such_package_anywhere", "pip install it")
    assert not finding.ok
    assert finding.remedy == "pip install it"


@pytest.mark.parametrize(
    ("package", "error"),
    [("torch", "ModuleNotFoundError('No module named torch')"), ("torch", "OSError('libtorch_cpu.so is missing')"),
     ("onnx", "TypeError('Descriptors cannot be created')"), ("dace", "AttributeError('sympy has no x')")],
)  # fmt: skip
def test_doctor_runs_where_a_package_cannot_be_imported(package, error, tmp_path):
    (tmp_path / f"{package}.py").write_text(f"raise {error}")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from dcir.cli.main import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3 and not done.stderr, done.stderr
    assert re.search(rf"BAD +{package}\b", done.stdout) and re.search("ok +cores", done.stdout)


def test_help_is_quick_and_imports_no_torch():
    code = (
        "import sys; from dcir.cli.main import main; main(['--help'], standalone_mode=False);"
        "sys.exit('torch' in sys.modules or 'dace' in sys.modules)"
    )
    assert "doctor" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "verb",
    [
        "compile",
        "run",
        "bench",
        "profile",
        "roofline",
        "plan",
        "check",
        "explain",
        "passes",
        "cache",
        "machine",
        "doctor",
    ],
)
def test_every_verb_explains_itself(verb):
    done = call(verb, "--help")
    assert done.exit_code == 0
    assert done.output.startswith(f"Usage: main {verb}")


def test_compile_has_a_program_of_its_own():
    code = "from dcir.cli.main import compile_main; compile_main()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: dcir-compile [OPTIONS] MODEL")


def test_tables_align_all_but_the_last_column():
    assert common.table([("a", "b"), ("long", "c")]) == "a     b\nlong  c"
    assert common.table([]) == ""
