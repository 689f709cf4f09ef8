"""Names of places: the same in any order, short for many operators, taken apart again."""

from __future__ import annotations

from dcir.ir.sites import canonical, labels_of, pass_of, place_text, site_text


def test_the_order_of_labels_says_nothing():
    assert place_text(["program_7", "contraction_3", "program_7"]) == "contraction_3+program_7"
    assert canonical("fuse@b+a") == canonical("fuse@a+b") == site_text("fuse", place_text(["b", "a"]))
    assert canonical("fuse@loop_2.0/b+a") == "fuse@loop_2.0/a+b"


def test_many_operators_have_a_short_name_that_tells_them_apart():
    many = [f"program_{i}" for i in range(40)]
    name = place_text(many, "loop_2.0/")
    assert len(name) < 100 and name.startswith("loop_2.0/program_0+") and "~35-more-" in name
    assert name == place_text(reversed(many), "loop_2.0/") != place_text([*many[:-1], "program_99"], "loop_2.0/")
    assert canonical(site_text("fuse", name)) == site_text("fuse", name)
    assert place_text(many[:6]) == "+".join(many[:6])


def test_a_site_is_taken_apart_again():
    assert pass_of("fuse@a+b") == "fuse"
    assert labels_of("fuse@loop_2.0/a+b") == ["a", "b"] and labels_of("") == []
    assert labels_of(site_text("fuse", place_text(f"p{i}" for i in range(9)))) == ["p0", "p1", "p2", "p3", "p4"]
