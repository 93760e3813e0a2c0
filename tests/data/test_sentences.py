"""Sentences in files and as tensors: what is read, and what is refused in one line."""

import json

import pytest
import torch

from classgrad.data.sentences import as_bytes, as_text, read_labelled, read_sentences
from classgrad.errors import UserError

PAIRS = [("move my money, now", "transfer"), ('wo ist mein "Geld"?', "balance"), ("日本語", "a b")]


def test_tables_lines_and_folders_say_the_same(tmp_path):
    table = tmp_path / "a.csv"
    quoted = [(text.replace('"', '""'), label) for text, label in PAIRS]
    lines = [f'"{text}",1,"{label}"' for text, label in quoted]
    table.write_bytes("\r\n".join(["\ufefftext,number,label", *lines]).encode())
    (tmp_path / "a.tsv").write_text("label\ttext\n" + "\n".join(
        f'{label}\t"{text}"' for text, label in quoted
    ))  # fmt: skip
    rows = [json.dumps({"label": label, "text": text, "id": 3}) for text, label in PAIRS]
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n\n")
    folder = tmp_path / "classes"
    folder.mkdir()
    for text, label in PAIRS:
        (folder / f"{label}.txt").write_text(f"{text}\n\n")
    wanted = sorted(PAIRS)
    for path in (table, tmp_path / "a.tsv", tmp_path / "a.jsonl", folder):
        assert sorted(zip(*read_labelled(path), strict=True)) == wanted, path
    assert read_sentences(table) == [text for text, _ in PAIRS]
    (tmp_path / "plain.txt").write_text("one\n\ntwo\n")
    assert read_sentences(tmp_path / "plain.txt") == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "has no column 'text', but nothing"),
        ("a.csv", b"text,class\na,b\n", "has no column 'label', but 'text', 'class'"),
        ("a.csv", b"text,label\n", "holds no sentence"),
        ("a.csv", b"text,label\nhello\n", "line 2: there are fewer columns"),
        ("a.csv", b"text,label\n ,a\n", "line 2: the sentence is empty"),
        ("a.csv", b"text,label\nhello,\n", "line 2: the label is empty"),
        ("a.csv", b"text,label\nhello, you,a\n", "line 2: there are more columns"),
        ("a.tsv", b"text\tlabel\nhello\tyou\ta\n", "line 2: there are more columns"),
        ("a.csv", b"text,text,label\nhello,you,a\n", "has several columns 'text'"),
        ("a.csv", b'text,label\n"hello,a\n', "unexpected end of data"),
        ("a.tsv", b'text\tlabel\n"hello" you\ta\n', "after line 1: text after a closing quote"),
        ("a.csv", "text,label\nhé,a\n".encode("latin-1"), "is not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n', "line 1 has no column 'label'"),
        ("a.jsonl", b'{"text": 3, "label": "a"}\n', "have to be text"),
        (
            "a.jsonl",
            b'{"text": "a", "label": "b\\ud83d"}\n',
            r"line 1: the label 'b\\ud83d' is not Unicode",
        ),
        ("a.jsonl", b"[" * 10_000, "line 1 is not a table in JSON"),
        ("a.pdf", b"", r"none of \.csv, \.tsv, \.jsonl"),
        ("a.csv", None, "cannot be read: No such file"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_labelled(path)
    assert str(caught.value).isprintable()


def test_half_a_character_in_a_sentence_is_read_as_a_question_mark(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "how \\ud83d are you"}\n', encoding="utf-8")
    assert read_sentences(path) == ["how ? are you"]


def test_a_folder_without_files_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has no \.txt"):
        read_labelled(tmp_path)


def test_sentences_are_their_bytes_and_no_character_is_cut():
    rows = as_bytes(["héllo", "日本語", "a\0b"], 7)
    assert rows.dtype == torch.uint8
    assert as_text(rows) == ["héllo", "日本", "a b"]
    assert as_text(rows / 255) == as_text(rows)
    long = as_bytes(["word " * 10_000], 64)
    assert len(as_text(long)[0]) <= 64


@pytest.mark.parametrize(("texts", "message"), [(["a", " \0"], "empty"), ([3], "has to be text")])
def test_what_is_no_sentence_is_refused(texts, message):
    with pytest.raises(UserError, match=message):
        as_bytes(texts)
