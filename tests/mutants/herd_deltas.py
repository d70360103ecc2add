"""Mutants of deltas of pages: when one is written, what it says, and who puts it in place."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_BUILDING: Final = "herd/checkpoint/building.py"
_DELTAS: Final = "herd/checkpoint/deltas.py"
_TESTS: Final = "herd/checkpoint/test_deltas.py"
_PURE: Final = "test_a_page_and_its_deltas_are_the_rows_whatever_came_and_went"
_WRITTEN: Final = "test_few_changes_of_a_page_become_a_delta_behind_it"

HERD_DELTA_MUTANTS: Final = (
    Mutant(
        "a-delta-forgets-keys-that-went",
        "a delta names the keys that are gone",
        _DELTAS,
        "gone = [place for place, key in enumerate(keys) if key not in there]",
        "gone: list[int] = []",
        by_test(_TESTS, _WRITTEN + "[keys-gone]"),
    ),
    Mutant(
        "a-page-whose-keys-changed-is-not-asked-for",
        "places in the page before are known only where no key came or went",
        _BUILDING,
        "if (old.rows, old.keys) != (len(rows), checksum_keys):",
        "if old.rows != len(rows):",
        by_test(_TESTS, _WRITTEN + "[one-for-another]"),
    ),
    Mutant(
        "a-page-that-was-only-updated-is-read",
        "where no key came or went a page is not read to write its delta",
        _BUILDING,
        "if (old.rows, old.keys) != (len(rows), checksum_keys):",
        "if True:",
        by_test(_TESTS, _WRITTEN + "[updates]"),
    ),
    Mutant(
        "a-chain-of-deltas-grows",
        "a page has few deltas",
        _BUILDING,
        " or len(old.deltas) >= CHAIN_MAX:",
        ":",
        by_test(_TESTS, "test_much_that_changed_and_a_long_chain_are_written_whole"),
    ),
    Mutant(
        "each-delta-is-few-rows-all-are-many",
        "all deltas of a page together have an eighth of its rows at most",
        _BUILDING,
        " // CHANGED_SHARE - earlier",
        " // CHANGED_SHARE",
        by_test(_TESTS, "test_all_deltas_of_a_page_together_stay_few"),
    ),
    Mutant(
        "a-delta-is-put-onto-a-page-of-other-rows",
        "a page gets a delta only if all its other rows are the table's",
        _DELTAS,
        "    if held != len(rows) - len(changed):\n        return None\n",
        "",
        by_test(_TESTS, "test_a_page_of_other_rows_gets_no_delta"),
    ),
    Mutant(
        "a-delta-that-does-not-fit-is-put-in-place",
        "a delta that does not fit its page is damage, never other rows",
        _DELTAS,
        "    except pa.ArrowIndexError as error:\n        raise CannotRead(_MISFIT) from error\n",
        "    except pa.ArrowIndexError:\n        return pa.array([False] * rows, pa.bool_())\n",
        by_test(_TESTS, "test_a_delta_of_another_page_does_not_fit[ids1]"),
    ),
    Mutant(
        "ranges-forget-what-changed",
        "a page's ranges have every value of the page and its deltas",
        _DELTAS,
        "ends = [end for end in (one, other) if end.lowest is not None]",
        "ends = [end for end in (one,) if end.lowest is not None]",
        by_test(_TESTS, _PURE),
    ),
    Mutant(
        "some-nulls-are-told-as-all",
        "of a page with deltas NULLs are none, some or all",
        _DELTAS,
        "return min(max(old, new, 1), rows - 1) or None",
        "return min(old + new, rows)",
        by_test(_TESTS, _PURE),
    ),
    Mutant(
        "a-ledger-of-deltas-alone-goes",
        "ledgers that a named page's deltas lie in are in use",
        "herd/checkpoint/manifest.py",
        "for at in page.locators:",
        "for at in page.locators[:1]:",
        by_test(_TESTS, "test_ledgers_stay_as_long_as_a_delta_in_them_is_named"),
    ),
    Mutant(
        "a-manifest-is-counted-as-waste",
        "a ledger is given up for unused pages, not for the manifest in it",
        "herd/checkpoint/taking.py",
        "manifest.written.get(ledger_id, metadata.length)",
        "metadata.length",
        by_test(_TESTS, "test_ledgers_of_a_few_deltas_are_no_reason_to_write_pages_anew"),
    ),
    Mutant(
        "an-old-program-reads-old-rows",
        "a manifest with deltas is closed to who knows none",
        "herd/checkpoint/manifest.py",
        "(FORMAT_MAJOR, 0) if has_deltas else (1, FORMAT_MINOR)",
        "(1, FORMAT_MINOR)",
        by_test(_TESTS, "test_a_manifest_with_deltas_is_closed_to_who_knows_none"),
    ),
    Mutant(
        "each-page-of-a-part-opens-its-ledger",
        "the ledgers of a part are opened once",
        "herd/snapshot/parts.py",
        "        opening = self._readers.get(locator.ledger_id)\n",
        "        opening = None\n",
        by_test(
            "herd/snapshot/test_opening.py",
            "test_the_ledgers_of_a_part_are_opened_once",
        ),
    ),
    Mutant(
        "sparks-part-reads-the-page-alone",
        "whoever reads a page reads its deltas",
        "herd/snapshot/parts.py",
        "    return Piece(page.locators, page.rows, number)",
        "    return Piece((page.locator,), page.rows, number)",
        by_test(
            "herd/snapshot/test_opening.py",
            "test_a_snapshot_has_what_changed_little_since_its_pages_were_written",
        ),
    ),
)
