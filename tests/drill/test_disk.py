"""The model of a disk after a power cut: what is durable stays, and what is not may be there in every combination."""

import base64

from tests.drill.disk import MOST, Disk, Operation, Tree

NEW = b"12345678"
WRITTEN: tuple[Operation, ...] = (
    ("create", 3, "new"),
    ("write", 3, base64.b64encode(NEW).decode()),
)


def disk(*operations: Operation) -> Disk:
    made = Disk()
    for operation in operations:
        made.do(operation)
    return made


def left(*operations: Operation) -> list[Tree]:
    return list(disk(*operations).after_a_cut("0"))


def test_a_name_and_bytes_without_an_fsync_are_left_in_every_way() -> None:
    states = left(*WRITTEN)
    assert [state for state in states if not state] == [{}] * 4, "the name is gone, whatever the bytes"
    assert [state["new"] for state in states if state] == [NEW, b"", NEW[:4], bytes(8)]


def test_what_was_synced_stays() -> None:
    synced = (*WRITTEN, ("fsync", 3), ("fsync_folder", "."))
    assert left(*synced) == [{"new": NEW}]
    appended = left(*synced, ("write", 3, base64.b64encode(b"++").decode()))
    assert [state["new"] for state in appended] == [NEW + b"++", NEW, NEW + b"+", NEW + bytes(2)]


def test_an_fsync_of_the_file_alone_leaves_the_name_in_doubt() -> None:
    assert left(*WRITTEN, ("fsync", 3)) == [{}, {"new": NEW}]


def test_a_rename_without_an_fsync_of_the_folder_leaves_the_old_file_or_the_new_one() -> None:
    old = (("create", 4, "old"), ("write", 4, base64.b64encode(b"old").decode()), ("fsync", 4))
    moved = left(*old, *WRITTEN, ("fsync", 3), ("fsync_folder", "."), ("replace", "new", "old"))
    assert moved == [{"old": b"old", "new": NEW}, {"old": NEW}]


def test_a_folder_whose_name_is_lost_takes_all_with_it() -> None:
    made = (("mkdir", "folder"), ("create", 3, "folder/new"), ("fsync", 3), ("fsync_folder", "folder"))
    assert left(*made) == [{}, {"folder": None, "folder/new": b""}]
    assert left(*made, ("fsync_folder", "."), ("unlink", "folder/new")) == [
        {"folder": None, "folder/new": b""},
        {"folder": None},
    ]


def test_what_alone_dies_with_the_process_is_nothing() -> None:
    assert disk(*WRITTEN).as_it_is() == {"new": NEW}
    assert disk(*WRITTEN, ("truncate", 3, 2)).as_it_is() == {"new": NEW[:2]}


def test_many_states_are_drawn_the_corners_among_them() -> None:
    many = [("create", fd, f"file-{fd}") for fd in range(10)]
    states = left(*many)
    assert len(states) == MOST
    assert {} in states
    assert {f"file-{fd}": b"" for fd in range(10)} in states
    assert states == left(*many), "drawn otherwise by the same seed"
    assert states != list(disk(*many).after_a_cut("1"))


def test_every_state_is_made_of_a_cut_that_leaves_few() -> None:
    few = disk(*[("create", fd, f"file-{fd}") for fd in range(7)])
    assert not few.is_drawn()
    assert len({frozenset(state) for state in few.after_a_cut("0")}) == 2**7 == MOST
    assert disk(*[("create", fd, f"file-{fd}") for fd in range(8)]).is_drawn()


def test_corners_are_all_that_was_written_what_was_synced_alone_and_each_thing_alone() -> None:
    made = disk(*WRITTEN, ("fsync", 3), ("write", 3, base64.b64encode(b"++").decode()), ("mkdir", "folder"))
    assert list(made.corners()) == [
        {"new": NEW + b"++", "folder": None},
        {},
        {"new": NEW},
        {"folder": None},
        {},
    ]
    many = disk(*[("create", fd, f"file-{fd}") for fd in range(10)])
    assert [len(state) for state in many.corners()] == [10, 0, *[1] * 10]
    assert len({frozenset(state) for state in many.corners()}) == 12


def test_a_cut_where_nothing_is_in_doubt_has_one_corner() -> None:
    synced = disk(*WRITTEN, ("fsync", 3), ("fsync_folder", "."))
    assert list(synced.corners()) == [{"new": NEW}] * 2
