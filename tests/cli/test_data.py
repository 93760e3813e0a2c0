import json

import pytest


def test_list_names_every_dataset_and_its_folder(call, tmp_path):
    code, out, _ = call("data", "list", "--json", "--data-dir", str(tmp_path))
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert {"cifar10", "cifar100", "mnist", "fashion_mnist", "svhn", "notmnist"} <= rows.keys()
    assert rows["cifar100"]["used_by"] == ["split-cifar100", "cifar100-superclass"]
    assert rows["cifar100"]["folder"].startswith(str(tmp_path))
    code, out, _ = call("data", "list", "--data-dir", str(tmp_path))
    assert code == 0
    assert str(tmp_path) in out.replace("\n", "")


def test_check_says_what_is_missing_and_exits_with_1(call, tmp_path):
    code, out, _ = call("data", "check", "mnist", "--data-dir", str(tmp_path), "--json")
    assert code == 1
    (report,) = json.loads(out)
    assert report["status"] == "missing"
    assert "classgrad data fetch mnist" in report["findings"][0]["note"]
    code, out, _ = call("data", "check", "all", "--data-dir", str(tmp_path))
    assert code == 1
    assert out.count("missing") >= 12
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["check", "fetch"])
def test_unknown_dataset_is_one_line(call, command):
    code, out, err = call("data", command, "nomnist")
    assert code == 2
    assert "did you mean 'notmnist'?" in err
    assert out == ""
    assert err.count("\n") == 1


def test_fetch_without_network_is_one_line_with_address_and_place(call, tmp_path, monkeypatch):
    import requests

    def cut(*_args, **_kwargs):
        raise requests.exceptions.ConnectionError("no network")

    monkeypatch.setattr(requests.Session, "send", cut)
    code, out, err = call("data", "fetch", "cifar100", "--data-dir", str(tmp_path))
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz" in err
    assert str(tmp_path / "cifar-100-python.tar.gz") in err
    assert list(tmp_path.iterdir()) == []


def test_run_without_data_says_how_to_fetch_them(call, tmp_path):
    code, out, err = call("run", "split-cifar100", "--data-dir", "none")
    assert code == 2
    assert out == ""
    assert "classgrad data fetch cifar100" in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
