"""What is in a tar file once it is extracted, without extracting it: a `Tree` for the walk over a channel's files.

As GNU tar and tarfile do: of members with one name the last one stays, a hard link is another name for what its target was
when the link came, a symbolic link leads to what is there in the end, and `./` or `/` in front of a name is dropped.
"""

import tarfile
from dataclasses import dataclass

from .channel_files import FolderScan, LinkTarget

MOST_LINKS = 40  # that one path may lead through, as for Linux
DUMPDIR = b"D"  # a folder, of tar --listed-incremental


class BadTarError(Exception):
    """What is wrong with a tar file, with the fix."""


# Where the content of a member is: its first byte in the tar file, and how many. A plain tuple: the garbage collector leaves
# out tuples of numbers, but not named ones, and a tar file may have a million members.
Bytes = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link, or (`lost`) a hard link whose target did not come before it. `text` is as it is written."""

    text: str
    lost: bool


Node = Bytes | Link | None  # None: a device, a named pipe or the like
SPARSE = (-1, -1)  # its content is in pieces


class TarTree:
    """Add the members in their order, then list. Paths have no `/` in front; the root is ""."""

    root = ""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.replaced: list[str] = []
        self._folders: set[str] = set()
        self._unclear = ""  # a name that comes twice, with a link: programs that extract disagree about it
        self._scans: dict[str, FolderScan] = {}

    def add(self, name: str, member: tarfile.TarInfo) -> None:
        """`name` is `clean(member.name)`."""
        if member.isdir() or member.type == DUMPDIR:
            self._folders.add(name)
            return
        node = self._node(member)
        if name in self.nodes:
            self.replaced.append(name)
            if node != self.nodes[name] and (isinstance(node, Link) or isinstance(self.nodes[name], Link)):
                self._unclear = name
        self.nodes[name] = node

    def _node(self, member: tarfile.TarInfo) -> Node:
        if member.issym():
            return Link(member.linkname, False)
        if member.islnk():
            target = clean(member.linkname)
            return self.nodes[target] if target in self.nodes else Link(member.linkname, True)
        if not member.isreg():
            return None
        return SPARSE if member.issparse() else (member.offset_data, member.size)

    def scan(self, folder: str) -> FolderScan:
        if not self._scans:
            self._arrange()
        return self._scans[folder]

    def _arrange(self) -> None:
        """Puts the names into their folders. Raises BadTarError if a name is several things."""
        if self._unclear:
            raise BadTarError(
                f"holds {self._unclear} twice, as a link and as something else; allowed: one of them; "
                "fix: write the tar file again"
            )
        self._scans[""] = FolderScan()
        for folder in self._folders:
            self._folder(folder)
        for path, node in self.nodes.items():
            folder, _, name = path.rpartition("/")
            scan = self._scans.get(folder) or self._folder(folder)
            (scan.special if node is None else scan.links if isinstance(node, Link) else scan.files).append(name)

    def _folder(self, path: str) -> FolderScan:
        if path in self._scans:
            return self._scans[path]
        if path in self.nodes:
            raise BadTarError(
                f"holds {path} as a folder and as a {'link' if isinstance(self.nodes[path], Link) else 'file'}; "
                "allowed: one of them; fix: write the tar file again"
            )
        above, _, name = path.rpartition("/")
        self._folder(above).folders.append(name)
        self._scans[path] = FolderScan()
        return self._scans[path]

    def follow(self, link: str) -> LinkTarget | None:
        """As `Tree.follow`. What is above the root is unknown here: it counts as the root itself, which is above all, too."""
        done: list[str] = []
        rest = link.split("/")[::-1]
        links = 0
        while rest:
            part = rest.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not done:
                    return LinkTarget("", "folder") if all(each in ("", ".", "..") for each in rest) else None
                done.pop()
                continue
            done.append(part)
            path = "/".join(done)
            node = self.nodes.get(path)
            if isinstance(node, Link):
                links += 1
                if links > MOST_LINKS or node.lost or node.text.startswith("/"):
                    return None
                done.pop()
                rest += node.text.split("/")[::-1]
            elif path in self.nodes:
                if rest:
                    return None
                return LinkTarget(path, "special" if node is None else "file")
            elif path not in self._scans:
                return None
        return LinkTarget("/".join(done), "folder")

    def text(self, link: str) -> str:
        node = self.nodes[link]
        return node.text if isinstance(node, Link) else link

    def content(self, path: str) -> Bytes:
        """Where the content of a listed file is. Raises BadTarError for a sparse one."""
        node = self.nodes.get(path)
        if not isinstance(node, tuple):
            target = self.follow(path)
            node = self.nodes.get(target.real) if target else None
        if node == SPARSE or not isinstance(node, tuple):
            raise BadTarError(f"holds {path} as a sparse file; fix: write the tar file without --sparse")
        return node


def clean(name: str) -> str:
    """The name of a member as it is extracted, without `./`, `/` in front, and doubled `/`."""
    if "//" not in name and "./" not in name and name[:1] != "/":  # nearly all: a million members make this worth it
        return name.removesuffix("/").removesuffix("/.") if name != "." else ""
    return "/".join(part for part in name.split("/") if part not in ("", "."))
