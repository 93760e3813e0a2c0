"""Words into pieces of a fixed vocabulary, as BERT reads them (Devlin et al., NAACL 2019).

Text is cleaned, put into small letters without accents, and split at spaces, punctuation and
Chinese characters. Of each word the longest piece that the vocabulary has is taken, again and again
from where the last one ended; pieces inside a word begin with "##".
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

PAD, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
LONGEST_WORD = 100  # characters; longer words are unknown
MAX_KNOWN = 100_000  # words whose pieces are remembered
# Of lower-case ASCII without control characters, which most text is; ten times as fast.
ASCII_WORDS = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")
ASCII_CONTROL = {number: None for number in (*range(32), 127) if chr(number) not in "\t\n\r"}
# Blocks of Chinese characters, each of which is a word.
CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPieces:
    """A vocabulary, and what it makes of words.

    >>> pieces = WordPieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "money", "trans", "##fer", "!"])
    >>> pieces.ids("Transfer MONEY!", 10)
    [2, 5, 6, 4, 7, 3]
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.number = {piece: number for number, piece in enumerate(vocabulary)}
        self._known: dict[str, tuple[int, ...]] = {}

    def ids(self, text: str, most: int) -> list[int]:
        """Return the numbers of the pieces, between those of begin and end; at most `most`."""
        numbers = [self.number[BEGIN]]
        for word in words(text):
            if len(numbers) >= most:
                break
            numbers += self._pieces(word)
        return [*numbers[: most - 1], self.number[END]]

    def _pieces(self, word: str) -> tuple[int, ...]:
        found = self._known.get(word)
        if found is None:
            found = tuple(self._split(word))
            if len(self._known) < MAX_KNOWN:
                self._known[word] = found
        return found

    def _split(self, word: str) -> list[int]:
        pieces, start = [], 0
        while start < len(word) <= LONGEST_WORD:
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self.number), None)
            if end is None:
                break
            pieces.append(self.number[prefix + word[start:end]])
            start = end
        return pieces if start == len(word) else [self.number[UNKNOWN]]


def words(text: str) -> Iterator[str]:
    """Yield the words of a text and its punctuation, cleaned.

    >>> list(words("Où est l'hôtel?"))
    ['ou', 'est', 'l', "'", 'hotel', '?']
    """
    if text.isascii():
        yield from ASCII_WORDS.findall(text.translate(ASCII_CONTROL).lower())
        return
    yield from words_of_any(text)


def words_of_any(text: str) -> Iterator[str]:
    """Yield the words of a text in any script."""
    for part in clean(text).split():
        yield from split_punctuation(letter for letter in simplify(part))


def clean(text: str) -> str:
    """Return a text without control characters, with spaces around Chinese characters."""
    return "".join(
        " " if char.isspace() else f" {char} " if is_chinese(char) else char
        for char in text
        if char in "\t\n\r" or not (char in "\0\ufffd" or unicodedata.category(char)[0] == "C")
    )


def simplify(word: str) -> str:
    """Return a word in small letters without accents."""
    apart = unicodedata.normalize("NFD", word.lower())
    return "".join(char for char in apart if unicodedata.category(char) != "Mn")


def split_punctuation(characters: Iterable[str]) -> Iterator[str]:
    """Yield words without punctuation, and each punctuation character by itself."""
    word = ""
    for char in characters:
        if is_punctuation(char):
            if word:
                yield word
            yield char
            word = ""
        else:
            word += char
    if word:
        yield word


def is_chinese(char: str) -> bool:
    """Tell whether a character is a word by itself."""
    return any(first <= ord(char) <= last for first, last in CHINESE)


def is_punctuation(char: str) -> bool:
    """Tell whether a character is punctuation, or another symbol of ASCII.

    >>> [is_punctuation(char) for char in "$a-¿"]
    [True, False, True, True]
    """
    ascii_symbol = char.isascii() and char.isprintable() and not char.isalnum() and char != " "
    return ascii_symbol or unicodedata.category(char).startswith("P")
