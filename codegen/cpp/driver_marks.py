"""What a driver does around its steps besides running them: nothing, read the clock, or tell torch's profiler.

    unsigned long long dcir_ticks[steps + 2]   with ``Laps``: nanoseconds of each step of the last call, of its teams, and the calls so far
    int dcir_run_recorded(..., const Recorder*)   with ``Records``: ``dcir_run``, and an event for every step

Events are torch's own, begun and ended while the step runs (``aoti_record_function_start`` of its stable C interface), so that they have
their true times and what a call into torch does lies inside of it. Their names come with the call: equal libraries are for models that
name things differently, and no name from a model reaches generated code.
"""

from __future__ import annotations

FIRST_THREAD = "(omp_get_level() > 1 ? omp_get_ancestor_thread_num(1) : omp_get_thread_num()) == 0"


class Marks:
    """Nothing.

    Attributes:
        suffix: of the names of the driver's functions.
        parameter, argument: what they take besides, and hand on.
    """

    suffix, parameter, argument = "", "", ""

    def declarations(self) -> list[str]:
        """What stands before all functions."""
        return []

    def opening(self) -> list[str]:
        """Where a run begins."""
        return []

    def team(self) -> list[str]:
        """Where a team has been opened, or closed."""
        return []

    def before(self, step: int) -> list[str]:
        """In front of a step."""
        return []

    def after(self, step: int) -> list[str]:
        """Behind a step."""
        return []

    def after_stream(self, last: int) -> list[str]:
        """Behind a stream of images, of which ``last`` is the last step."""
        return []


class Laps(Marks):
    """``lap(i)``: the time since the last lap counts for step i.

    Args:
        steps: how many there are.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def declarations(self) -> list[str]:
        """The clock."""
        return [
            "struct Time { long seconds, nanoseconds; };",
            'extern "C" int clock_gettime(int, Time*);',
            f'extern "C" {{ __attribute__((visibility("default"))) unsigned long long dcir_ticks[{self.steps + 2}]; }}',
            "static unsigned long long last;",
            "static void lap(int step) {",
            f"  if (!({FIRST_THREAD})) return;",
            "  Time t;",
            "  clock_gettime(1, &t);",  # CLOCK_MONOTONIC
            "  unsigned long long now = t.seconds * 1000000000ull + t.nanoseconds;",
            "  dcir_ticks[step] += now - last; last = now;",
            "}",
        ]

    def opening(self) -> list[str]:
        """All clocks at zero, and one call more."""
        n = self.steps
        return [
            f"  for (int i = 0; i <= {n}; i++) dcir_ticks[i] = 0;\n  lap({n}); dcir_ticks[{n}] = 0; dcir_ticks[{n + 1}]++;"
        ]

    def team(self) -> list[str]:
        """A lap of the teams' own."""
        return self.after(self.steps)

    def after(self, step: int) -> list[str]:
        """A lap of the step."""
        return [f"  lap({step});"]

    def after_stream(self, last: int) -> list[str]:
        """What a stream takes beyond its kernels is its last step's."""
        return self.after(last)


class Records(Marks):
    """An event of torch's profiler for every step, on the calling thread, which runs a part of each kernel and waits at its end."""

    suffix, parameter, argument = "_recorded", ", const Recorder* record", ", record"

    def declarations(self) -> list[str]:
        """What begins and ends an event; other threads of the team have none."""
        return [
            "struct Recorder {",
            "  int (*begin)(const char*, void*, void* const*, unsigned long long, void**); int (*end)(void*); const char* const* names;",
            "};",
            "static void* begin(const Recorder* r, int step) {",
            "  void* event = 0;",
            f"  if ({FIRST_THREAD}) r->begin(r->names[step], 0, 0, 0, &event);",
            "  return event;",
            "}",
            "static void end(const Recorder* r, void* event) { if (event) r->end(event); }",
        ]

    def before(self, step: int) -> list[str]:
        """The event begins."""
        return [f"  void* event{step} = begin(record, {step});"]

    def after(self, step: int) -> list[str]:
        """The event ends."""
        return [f"  end(record, event{step});"]
