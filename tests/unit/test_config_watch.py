"""When a file counts as changed: once it has stayed the same for a whole interval."""

from pathlib import Path

from tarsy_tasks.config.watch import FileWatch


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("old")
    watch = FileWatch([path])
    assert not watch.has_changed()
    path.write_text("new, ")
    assert not watch.has_changed(), "it may not be all"
    path.write_text("new, and the rest")
    assert not watch.has_changed()
    assert watch.has_changed()
    watch.begin()
    assert watch.is_current()
    assert not watch.has_changed()


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    watch = FileWatch([path])
    watch.begin()
    path.write_text("new")
    assert not watch.is_current()
    assert not watch.has_changed()
    assert watch.has_changed()


def test_a_replaced_file_and_a_moved_link_are_changes(tmp_path: Path) -> None:
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "link"
    for path in (first, second):
        path.write_text("same size")
    link.symlink_to(first)
    watch = FileWatch([link])
    link.unlink()
    assert not watch.has_changed()
    assert watch.has_changed(), "it is gone"
    watch.begin()
    link.symlink_to(second)
    assert not watch.has_changed()
    assert watch.has_changed()
