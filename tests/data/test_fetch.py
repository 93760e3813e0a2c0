import gzip
import hashlib
import http.server
import io
import tarfile
import threading
from dataclasses import replace
from functools import partial

import pytest

from classgrad.data import DATASETS, Download, load
from classgrad.data import fetch as fetching
from classgrad.data import notmnist as letters
from classgrad.data.fetch import fetch
from classgrad.errors import UserError
from data.datafiles import as_release, cifar100, idx, notmnist


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; a name in `cut` is sent without its second half."""

    def do_GET(self):
        name = self.path.rsplit("/", 1)[1]
        self.server.asked.append(name)
        if name not in self.server.cut:
            return super().do_GET()
        with open(self.translate_path(self.path), "rb") as file:
            content = file.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.close_connection = True
        return None

    def log_message(self, *given):
        pass


class Server(http.server.ThreadingHTTPServer):
    """A server that does not complain of clients which have heard enough."""

    def handle_error(self, *given):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "served"
    folder.mkdir()
    server = Server(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    server.cut, server.asked, server.folder = set(), [], folder
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def address(server, name):
    return f"http://127.0.0.1:{server.server_address[1]}/{name}"


def tar(files, kinds=None):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, (kind, target) in (kinds or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    return file.getvalue()


def served(server, data, content, checked=True):
    """Return `data` with its archive on the server."""
    (download,) = data.downloads
    (server.folder / download.name).write_bytes(content)
    return replace(
        data,
        downloads=(
            replace(
                download,
                address=address(server, download.name),
                size=len(content),
                checksum=f"sha256:{hashlib.sha256(content).hexdigest()}" if checked else None,
            ),
        ),
    )


def cifar_files(tmp_path):
    folder = cifar100(tmp_path / "source")
    return {f"cifar-100-python/{path.name}": path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def cifar(server, tmp_path):
    files = cifar_files(tmp_path)
    data = as_release("cifar100", tmp_path / "source")
    return served(server, data, tar({"cifar-100-python/file.txt~": b"", **files}))


@pytest.fixture
def mnist(server, tmp_path):
    folder = idx(tmp_path / "source", packed=True)
    data = as_release("mnist", tmp_path / "source")
    downloads = []
    for download in data.downloads:
        content = (folder / download.name).read_bytes()
        (server.folder / download.name).write_bytes(content)
        checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
        place = address(server, download.name)
        downloads.append(Download(place, len(content), checksum, download.place))
    return replace(data, downloads=tuple(downloads))


def refused(data, root, match):
    with pytest.raises(UserError, match=match) as caught:
        fetch(data, root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def contents(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_an_archive_is_fetched_and_unpacked(cifar, tmp_path, server):
    root = tmp_path / "root"
    report = fetch(cifar, root)
    assert report.status == "complete"
    assert contents(root) == [
        "cifar-100-python",
        "cifar-100-python/meta",
        "cifar-100-python/test",
        "cifar-100-python/train",
    ]
    assert load(cifar, root, "train").complete
    assert fetch(cifar, root).status == "complete"
    assert server.asked == ["cifar-100-python.tar.gz"]


def test_single_files_are_fetched(mnist, tmp_path, server):
    root = tmp_path / "root"
    assert fetch(mnist, root).status == "complete"
    assert contents(root / "MNIST" / "raw") == sorted(each.name for each in mnist.downloads)
    (root / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    fetch(mnist, root)
    assert server.asked[4:] == ["t10k-labels-idx1-ubyte.gz"]


def test_progress_is_shown_when_asked_for(mnist, tmp_path, capsys):
    fetch(mnist, tmp_path / "quiet")
    assert capsys.readouterr() == ("", "")
    fetch(mnist, tmp_path / "shown", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "train-images-idx3-ubyte.gz" in err


def test_a_cut_leaves_nothing_and_the_next_try_succeeds(mnist, tmp_path, server):
    root = tmp_path / "root"
    server.cut.add("t10k-images-idx3-ubyte.gz")
    message = refused(mnist, root, "cannot fetch t10k-images-idx3-ubyte.gz")
    assert str(root / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz") in message
    assert contents(root) == [
        "MNIST",
        "MNIST/raw",
        "MNIST/raw/train-images-idx3-ubyte.gz",
        "MNIST/raw/train-labels-idx1-ubyte.gz",
    ]
    server.cut.clear()
    server.asked.clear()
    assert fetch(mnist, root).status == "complete"
    assert server.asked == ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]
    assert not (root / ".downloads").exists()


def test_a_file_with_another_checksum_is_refused(cifar, tmp_path, server):
    path = server.folder / "cifar-100-python.tar.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    refused(cifar, tmp_path / "root", "arrived damaged")
    assert contents(tmp_path / "root") == []


def test_a_file_longer_than_the_release_is_stopped(cifar, tmp_path, server):
    (server.folder / "cifar-100-python.tar.gz").write_bytes(bytes(4 * 2**20))
    refused(cifar, tmp_path / "root", "arrived damaged or is not the release")
    assert contents(tmp_path / "root") == []


def test_a_missing_page_is_reported(cifar, tmp_path, server):
    (server.folder / "cifar-100-python.tar.gz").unlink()
    refused(cifar, tmp_path / "root", "the server answered 404")


def test_without_network(cifar, tmp_path, server):
    content = (server.folder / "cifar-100-python.tar.gz").read_bytes()
    (download,) = cifar.downloads
    closed = replace(download, address="http://127.0.0.1:1/cifar-100-python.tar.gz")
    offline = replace(cifar, downloads=(closed,))
    root = tmp_path / "root"
    message = refused(offline, root, "no connection to 127.0.0.1")
    by_hand = root / "cifar-100-python.tar.gz"
    assert closed.address in message
    assert f"put it at {by_hand}" in message
    by_hand.write_bytes(content)
    assert fetch(offline, root).status == "complete"
    assert by_hand.exists()


def test_a_wrong_file_put_by_hand_is_refused(cifar, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "cifar-100-python.tar.gz").write_bytes(b"something")
    refused(cifar, root, "damaged or not the release")


def test_what_is_there_is_not_overwritten(cifar, mnist, tmp_path, server):
    root = tmp_path / "root"
    folder = cifar100(root)
    (folder / "train").write_bytes((folder / "test").read_bytes())
    before = (folder / "train").read_bytes()
    refused(cifar, root, "exists and is not the release")
    assert (folder / "train").read_bytes() == before
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"mine"))
    refused(mnist, root, "move it away first")
    assert server.asked == []


def test_leftovers_of_a_kill_do_no_harm(cifar, tmp_path):
    root = tmp_path / "root"
    (root / ".downloads" / "unpack-old").mkdir(parents=True)
    (root / ".downloads" / "cifar-100-python.tar.gz").write_bytes(b"half")
    assert fetch(cifar, root).status == "complete"


LINKS = {
    "symbolic link": (tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": (tarfile.LNKTYPE, "cifar-100-python/meta"),
    "device": (tarfile.CHRTYPE, ""),
    "fifo": (tarfile.FIFOTYPE, ""),
}


@pytest.mark.parametrize("kind", list(LINKS))
def test_links_in_an_archive_are_refused(server, tmp_path, kind):
    files = cifar_files(tmp_path)
    data = as_release("cifar100", tmp_path / "source")
    del files["cifar-100-python/train"]
    content = tar(files, {"cifar-100-python/train": LINKS[kind]})
    refused(served(server, data, content), tmp_path / "root", "not a regular file")
    assert not (tmp_path / "root" / "cifar-100-python").exists()


def test_other_members_are_not_written(server, tmp_path):
    files = cifar_files(tmp_path)
    data = as_release("cifar100", tmp_path / "source")
    outside = {
        "../escaped": b"x",
        "/classgrad-escaped": b"x",
        "cifar-100-python/../../escaped": b"x",
        "cifar-100-python/more": b"x",
    }
    root = tmp_path / "root"
    fetch(served(server, data, tar({**outside, **files})), root)
    assert not list(tmp_path.rglob("escaped"))
    assert len(contents(root)) == 4


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda files: files.pop("cifar-100-python/test"), "does not hold cifar-100-python/test"),
        (lambda files: files.update({"cifar-100-python/test": b"x"}), "not a file of CIFAR-100"),
    ],
)
def test_an_archive_of_other_content_is_refused(server, tmp_path, damage, match):
    files = cifar_files(tmp_path)
    data = as_release("cifar100", tmp_path / "source")
    damage(files)
    root = tmp_path / "root"
    message = refused(served(server, data, tar(files)), root, match)
    assert "unpack-" not in message
    assert not (root / "cifar-100-python").exists()


def test_what_unpacks_without_end_is_stopped(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "MAX_UNPACKED", 2**20)
    files = cifar_files(tmp_path)
    data = as_release("cifar100", tmp_path / "source")
    content = tar({"padding": bytes(2**21), **files})
    refused(served(server, data, content), tmp_path / "root", "unpacks to more than")


@pytest.mark.parametrize("name", ["other", "cifar-100-python/train"])
def test_a_member_that_announces_any_size_is_not_waited_for(server, tmp_path, monkeypatch, name):
    monkeypatch.setattr(fetching, "MAX_UNPACKED", 2**20)
    cifar_files(tmp_path)
    data = as_release("cifar100", tmp_path / "source")
    member = tarfile.TarInfo(name)
    member.size = 2**62
    content = gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    refused(served(server, data, content), tmp_path / "root", "more than|not a regular file")


@pytest.mark.parametrize(
    "content",
    [b"", b"junk", gzip.compress(b"junk"), gzip.compress(b"")],
    ids=["nothing", "junk", "packed junk", "packed nothing"],  # what is packed has the time in it
)
def test_what_is_no_archive_is_refused(server, tmp_path, content):
    cifar_files(tmp_path)
    data = as_release("cifar100", tmp_path / "source")
    refused(served(server, data, content), tmp_path / "root", "is not the release")


@pytest.fixture
def glyphs(server, tmp_path, monkeypatch):
    """A small notMNIST_small: one folder for each letter, without a split or a checksum."""
    monkeypatch.setattr(letters, "TEST_PER_LETTER", 2)
    source = notmnist(tmp_path / "unsplit", each=3)
    files = {
        f"notMNIST_small/{path.parent.name}/{path.name}": path.read_bytes()
        for path in source.glob("*/*/*.png")
    }
    split = tmp_path / "source" / "notMNIST"
    for letter in "ABCDEFGHIJ":
        names = {name: raw for name, raw in files.items() if f"/{letter}/" in name}
        test = letters.select_test_files(letter, [name.rsplit("/", 1)[1] for name in names])
        for name, raw in names.items():
            last = name.rsplit("/", 1)[1]
            place = split / ("Test" if last in test else "Train") / letter
            place.mkdir(parents=True, exist_ok=True)
            (place / last).write_bytes(raw)
    data = as_release("notmnist", tmp_path / "source")
    files |= {f"notMNIST_small/{name}": b"" for name in letters.EMPTY}
    return data, files


def test_letters_are_split_by_name_and_checked_by_content(glyphs, server, tmp_path):
    data, files = glyphs
    root = tmp_path / "root"
    data = served(server, data, tar({"notMNIST_small/._A": b"", **files}), checked=False)
    assert fetch(data, root).status == "complete"
    assert len(load(data, root, "train")) == 40
    assert len(load(data, root, "test")) == 20
    assert not list(root.rglob("*MNIST_small*"))


def test_letters_of_other_content_are_refused(glyphs, server, tmp_path):
    data, files = glyphs
    one, other = (f"notMNIST_small/B/{part}B1.png" for part in ("Train", "Test"))
    files[one], files[other] = files[other], files[one]
    data = served(server, data, tar(files), checked=False)
    refused(data, tmp_path / "root", "is not the release")
    assert not (tmp_path / "root" / "notMNIST").exists()


def test_an_archive_without_checksum_has_the_right_size(glyphs, server, tmp_path):
    data, files = glyphs
    data = served(server, data, tar(files), checked=False)
    data = replace(data, downloads=(replace(data.downloads[0], size=data.downloads[0].size + 1),))
    refused(data, tmp_path / "root", "arrived damaged or is not the release")
    assert contents(tmp_path / "root") == []


def test_what_has_no_checksum_at_all_is_not_fetched(tmp_path):
    message = refused("notmnist32", tmp_path, "no checksum of it is known")
    assert DATASETS["notmnist32"].by_hand in message


def test_a_folder_that_cannot_be_written_to(cifar, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    refused(cifar, tmp_path / "file" / "root", "cannot write")
