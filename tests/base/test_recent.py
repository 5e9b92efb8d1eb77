"""A table that keeps what was used last."""

import threading

import pytest

from gpuflow.base.recent import Recent


def test_what_was_used_longest_ago_goes():
    table = Recent(4)
    for k in range(4):
        table.put(k, str(k))
    assert table.get(0) == "0" and table.get(9) is None
    table.put(4, "4")
    assert list(table) == [2, 3, 0, 4] and len(table) == 4
    table.put(2, "new")
    table.clear()
    assert len(table) == 0 and table.get(2) is None


def test_what_goes_is_told():
    gone = []

    class Told(Recent):
        def drop(self, value):
            gone.append(value)

    table = Told(2)
    for k in range(5):
        table.put(k, k * k)
    assert gone == [0, 1, 4]


def test_keys_must_be_hashable():
    with pytest.raises(TypeError):
        Recent(2).get([])


def test_threads_may_use_it_at_once():
    table, errors = Recent(50), []

    def work(number):
        try:
            for k in range(3000):
                table.put((number, k % 70), k)
                table.get((number, (k * 7) % 70))
                list(table)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(table) <= 50
