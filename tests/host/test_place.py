"""The engine's cgroup is found on every layout, and no other cgroup is ever taken for it."""

import pytest

from gpuwatch.sources.host.kernel_files import NotSeenError
from gpuwatch.sources.host.place import find_place
from tests.host.trees import Tree, version_1, version_2, write


def test_version_2_in_its_own_namespace(tmp_path):
    tree, folder = version_2(tmp_path)
    place = find_place(42, tree.proc)
    assert (place.version, place.held) == (2, True)
    assert place.of("cpu") == place.of("memory") == (folder,)


def test_as_a_sidecar_sees_it_paths_begin_above_the_sidecars_own_cgroup(tmp_path):
    """The kernel writes paths relative to the reader's cgroup namespace, in both files alike."""
    tree, _ = version_2(tmp_path, "/../engine.scope/init", "/../engine.scope")
    place = find_place(42, tree.proc)
    top = tree.root / "sys/fs/cgroup"
    assert place.of("cpu") == (top / "init", top)


def test_version_1_has_a_folder_for_each_controller(tmp_path):
    tree, cpu, memory = version_1(tmp_path)
    place = find_place(42, tree.proc)
    assert (place.version, place.of("cpu"), place.of("cpuacct"), place.of("memory")) == (1, (cpu,), (cpu,), (memory,))
    assert place.of("pressure") == ()


def test_both_versions_at_once_give_controllers_and_pressure(tmp_path):
    tree, cpu, _ = version_1(tmp_path)
    mountinfo = tree.folder / "mountinfo"
    mountinfo.write_text(mountinfo.read_text() + "50 29 0:31 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw\n")
    tree.groups(*(tree.folder / "cgroup").read_text().splitlines(), "0::/deep")
    unified = tree.put("sys/fs/cgroup/unified/deep", cgroup_procs=42)
    place = find_place(42, tree.proc)
    assert place.version == 1
    assert place.of("cpu") == (cpu,)
    assert place.of("pressure")[0] == unified


def test_a_process_in_a_nested_group_has_the_groups_above_it_too(tmp_path):
    tree, folder = version_2(tmp_path, "/a/b/c")
    top = tree.root / "sys/fs/cgroup"
    assert find_place(42, tree.proc).of("memory") == (folder, top / "a/b", top / "a", top)


def test_a_mount_point_with_a_blank_is_found(tmp_path):
    tree = Tree(tmp_path)
    tree.mounts("/ /my\\040groups rw - cgroup2 cgroup rw")
    tree.groups("0::/")
    tree.put("my groups", cgroup_procs=42)
    assert find_place(42, tree.proc).version == 2


def test_a_folder_that_does_not_hold_the_process_is_refused(tmp_path):
    """The agent's own cgroup has the same path inside its own container: it lists the agent and not the engine."""
    tree, folder = version_2(tmp_path)
    write(folder / "cgroup.procs", "1\n99\n")
    with pytest.raises(NotSeenError) as refused:
        find_place(42, tree.proc)
    assert "SYS_PTRACE" in refused.value.cure


def test_processes_of_another_namespace_are_listed_as_zero_and_confirm_nothing(tmp_path):
    tree, folder = version_2(tmp_path)
    write(folder / "cgroup.procs", "0\n0\n")
    assert find_place(42, tree.proc).held is False


def test_a_root_that_may_not_be_entered_says_so_and_what_would_help(tmp_path):
    """Without SYS_PTRACE the kernel hides /proc/PID/root: as if nothing were there."""
    tree, folder = version_2(tmp_path)
    (folder / "cgroup.procs").unlink()
    with pytest.raises(NotSeenError, match="/proc/42/root: not there") as hidden:
        find_place(42, tree.proc)
    assert "machine.cgroup_root" in hidden.value.cure


def test_a_process_that_has_gone_asks_for_a_shared_pid_namespace(tmp_path):
    with pytest.raises(NotSeenError, match="/proc/7/cgroup: not there") as gone:
        find_place(7, tmp_path)
    assert "shareProcessNamespace" in gone.value.cure


def host_mount(top, *parts, procs="42\n"):
    mounted = top / "host-cgroup"
    write(mounted / "cgroup.controllers", "cpu io memory\n")
    folder = mounted.joinpath(*parts)
    write(folder / "cgroup.procs", procs)
    return mounted, folder


def test_through_a_mount_of_the_hosts_hierarchy(tmp_path):
    tree = Tree(tmp_path)
    tree.groups("0::/kubepods.slice/pod1.slice/abc.scope")
    mounted, folder = host_mount(tmp_path, "kubepods.slice", "pod1.slice", "abc.scope")
    place = find_place(42, tree.proc, mounted)
    assert place.of("cpu") == (folder, folder.parent, folder.parent.parent, mounted)
    assert place.way == str(mounted)


def test_through_the_hosts_hierarchy_from_inside_a_cgroup_namespace(tmp_path):
    """The path then begins somewhere above the agent: the folder is found by its end and by whom it holds."""
    tree = Tree(tmp_path)
    tree.groups("0::/../abc.scope")
    mounted, folder = host_mount(tmp_path, "pod1.slice", "abc.scope")
    write(mounted / "pod0.slice" / "abc.scope" / "cgroup.procs", "1\n")  # another one's
    assert find_place(42, tree.proc, mounted).of("cpu")[0] == folder


def test_a_hosts_hierarchy_of_version_1(tmp_path):
    tree = Tree(tmp_path)
    tree.groups("4:cpu,cpuacct:/docker/abc", "3:memory:/docker/abc")
    for controllers in ("cpu,cpuacct", "memory"):
        write(tmp_path / "host" / controllers / "docker" / "abc" / "cgroup.procs", "42\n")
    place = find_place(42, tree.proc, tmp_path / "host")
    assert place.version == 1
    assert place.of("memory")[0] == tmp_path / "host" / "memory" / "docker" / "abc"


@pytest.mark.parametrize("text", ["", "x\n", "::::\n", "0::\n", "9:cpu\n", "\0\n", "0::/" + "../" * 50 + "\n"])
def test_nonsense_is_not_seen_and_no_crash(tmp_path, text):
    tree = Tree(tmp_path)
    write(tree.folder / "cgroup", text)
    write(tree.folder / "mountinfo", text + "1 2 3 / - cgroup2\n- - -\n")
    with pytest.raises(NotSeenError):
        find_place(42, tree.proc, tmp_path / "nowhere")
