"""The cache: bounded in size and time."""

import pytest

from crabtalk_search.metasearch import ExpiringCache


class CacheClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.req("searchapp.cache")
def test_an_entry_expires_after_its_time() -> None:
    clock = CacheClock()
    cache: ExpiringCache[str, int] = ExpiringCache(4, 300, clock)
    cache.put("a", 1)
    clock.now += 299
    assert cache.get("a") == 1
    clock.now += 1
    assert cache.get("a") is None
    assert len(cache) == 0


@pytest.mark.req("searchapp.cache")
def test_the_least_recently_used_entry_is_dropped_first() -> None:
    cache: ExpiringCache[str, int] = ExpiringCache(2, 300, CacheClock())
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


@pytest.mark.req("searchapp.cache")
def test_without_capacity_nothing_is_cached() -> None:
    cache: ExpiringCache[str, int] = ExpiringCache(0, 300, CacheClock())
    cache.put("a", 1)
    assert cache.get("a") is None
