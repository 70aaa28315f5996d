"""The site in a browser: sorted, filtered, compared, by keyboard, dark, on a phone; nothing is asked for."""

import shutil

import pytest
from command_line import flnl
from synthetic_runs import write_grid

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
GRID = {
    "fedavg": {"sym-1.0": (20.0, 22.0), "asym-1.0": (60.0, 62.0)},
    "fedgr": {"sym-1.0": (70.0, 74.0), "asym-1.0": (50.0, 52.0)},
    "fedprox": {"sym-1.0": (30.0, 33.0), "asym-1.0": (40.0, 41.0)},
}
PHONE = {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    for partition in ("iid", "dir-0.3"):
        write_grid(folder / "runs", GRID, (1, 13), training={"rounds": 3}, partition=partition)
    write_grid(folder / "runs", GRID, (1,), training={"rounds": 3}, dataset="cifar10")
    assert flnl("report", folder / "runs", "-o", folder / "site").code == 0
    return folder / "site"


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser, site):
    """Opens pages; in the end there was no error and no request but for files."""
    contexts, wrong = [], []

    def go(name, **options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith(("file:", "data:")) or wrong.append(asked.url))
        page.on("requestfailed", lambda asked: wrong.append(asked.url))
        page.goto((site / name).as_uri() if "#" not in name else f"{site.as_uri()}/{name}")
        return page

    yield go
    for context in contexts:
        context.close()
    assert wrong == []


def rows(page, table=0):
    texts = page.locator(f"section[data-table='{table}'] tbody tr:not(.below)").all_inner_texts()
    return [" ".join(text.split()) for text in texts]


def names(page, table=0):
    return [row.split()[0] for row in rows(page, table)]


def test_the_numbers_are_those_of_the_leaderboard(open_page, site):
    page = open_page("index.html")
    tables = flnl("leaderboard", site.parent / "runs", "--format", "json").json["tables"]
    for number, table in enumerate(tables):
        for shown, row in zip(rows(page, number), table["rows"], strict=True):
            cells = [*(row["cells"][name] for name in table["settings"]), row["avg"]]
            spread = ["" if cell["std"] is None else f" ± {cell['std']:.2f}" for cell in cells]
            texts = [f"{cell['mean']:.2f}{std}" for cell, std in zip(cells, spread, strict=True)]
            tied = [other["rank"] for other in table["rows"]].count(row["rank"]) > 1
            place = ""
            if "letters" in row:
                low, high = row["place_low"], row["place_high"]
                place = f" {low}{f'–{high}' if high > low else ''} {row['letters']} {row['p_best']:.2f}"
            assert shown == f"{row['label']} {' '.join(texts)} {row['rank']:.2f}{'=' * tied}{place}"
            bold = page.locator(f"section[data-table='{number}'] tr", has_text=row["label"]).locator("b")
            assert bold.count() == list(row["marks"].values()).count("best")


def test_a_click_sorts_and_another_turns_the_order(open_page):
    page = open_page("index.html")
    button = page.locator("section[data-table='0'] button[data-sort='0:sym-1.0']")
    button.click()
    assert names(page) == ["fedgr", "fedprox", "fedavg"]
    assert page.locator("th[aria-sort='descending']").inner_text().startswith("sym-1.0")
    page.keyboard.press("Enter")  # the focus stays where it was
    assert names(page) == ["fedavg", "fedprox", "fedgr"]
    assert (
        page.locator("section[data-table='0'] th[aria-sort='ascending']").inner_text().startswith("sym-1.0")
    )


def test_filters_leave_what_is_chosen_and_the_address_keeps_it(open_page):
    page = open_page("index.html")
    assert page.locator("section[data-table]").count() == 3
    page.locator("details[data-filter=partition] summary").click()
    page.get_by_label("dir-0.3", exact=True).uncheck()
    assert page.locator("#count").inner_text() == "2 of 3 tables"
    page.locator("details[data-filter=method] summary").click()
    page.get_by_label("fedgr", exact=True).uncheck()
    assert all("fedgr" not in row for row in rows(page))
    page.locator("details[data-filter=seed] summary").click()
    page.get_by_label("13", exact=True).uncheck()
    digits = page.locator("section", has_text="digits · iid").first
    assert "20.00" in digits.inner_text()
    assert "±" not in digits.locator("tbody").inner_text()  # one seed
    page.locator("h1").click()
    assert page.locator("details.filter[open]").count() == 0  # it would lie over the table
    page.locator("#metric").select_option("memorised")
    assert "10.00" in rows(page)[0]
    page.reload()
    assert page.locator("#metric").input_value() == "memorised"
    assert page.locator("#count").inner_text() == "2 of 3 tables"
    page.locator("#reset").click()
    assert page.locator("section[data-table]").count() == 3


def test_the_papers_numbers_are_shown_when_asked_for(open_page):
    page = open_page("index.html")
    assert page.locator("tr.paper").count() == 0
    page.locator("#paper").check()
    assert page.locator("tr.paper").count() == 3  # CIFAR-10 only
    assert "not comparable" in page.locator("p.alarm").first.inner_text()


def test_a_method_leads_to_its_charts_and_its_runs(open_page):
    page = open_page("index.html")
    page.get_by_role("link", name="fedgr").first.click()
    page.locator("figure canvas").first.wait_for()
    assert page.locator("h1").inner_text() == "fedgr"
    legend = page.locator(".u-legend").first.inner_text()
    assert "fedavg" in legend
    assert "--" not in legend
    page.locator("details summary", has_text="runs").first.click()
    page.get_by_role("link", name="seed").first.click()
    page.locator("figure canvas").first.wait_for()
    assert page.locator("h1").inner_text().startswith("fedgr on ")


def test_two_methods_stand_side_by_side(open_page):
    page = open_page("compare.html#a=fedgr&b=fedavg")
    page.locator("figure canvas").first.wait_for()
    cells = (
        page.locator("section", has_text="digits · iid").first.locator("tbody tr").first.inner_text().split()
    )
    assert cells == ["sym-1.0", "72.00", "21.00", "+51.00", "2/0/0", "2"]
    assert page.locator("#diverged").is_hidden()  # no run did
    page.locator("#b").select_option("fedprox")
    page.locator("th", has_text="fedprox").first.wait_for()
    assert "b=fedprox" in page.url


def test_the_keyboard_is_enough(open_page):
    page = open_page("index.html")

    def reach(selector, key="Tab"):
        for _ in range(80):
            page.keyboard.press(key)
            if page.evaluate("s => document.activeElement.matches(s)", selector):
                return
        raise AssertionError(f"no way to {selector}")

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reach("details[data-filter=partition] summary")
    page.keyboard.press("Enter")
    reach("details[data-filter=partition] input")
    page.keyboard.press("Space")
    assert page.locator("#count").inner_text() != "3 of 3 tables"
    page.keyboard.press("Escape")
    assert page.locator("details.filter[open]").count() == 0
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    reach("button.sort[data-sort$=':Avg']")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    page.keyboard.press("Enter")
    assert outline == "solid"
    assert page.locator("th[aria-sort='descending']").count() == 1
    reach("tbody a")
    page.keyboard.press("Enter")
    page.locator("figure canvas").first.wait_for()
    reach("figure [role=button]")


@pytest.mark.parametrize("name", ["index.html", "compare.html", "cost.html", "methods/fedgr.html"])
def test_a_phone_needs_no_scrolling_to_the_side_and_dark_is_dark(open_page, name):
    page = open_page(name, viewport=PHONE, color_scheme="dark")
    page.wait_for_function("document.querySelector('#theme').hidden === false")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    shade = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(shade) == "rgb(20, 23, 26)"
    page.locator("#theme").click()
    assert page.evaluate(shade) == "rgb(255, 255, 255)"
    page.reload()
    assert page.evaluate(shade) == "rgb(255, 255, 255)"  # the choice is kept


def test_places_are_shown_for_whole_tables_and_rows_are_sorted_by_avg(site, browser):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    head = page.locator("section[data-table='1'] thead th").all_inner_texts()
    first = page.locator("section[data-table='1'] tbody tr").first
    assert first.locator("th").inner_text() == "fedgr"
    assert head[-2:] == ["place", "P(best)"]
    assert first.locator("td").nth(-2).inner_text() == "1 a"
    assert page.locator("section[data-table='1'] tbody tr").last.locator("th").inner_text() == "detectable"
    page.goto((site / "index.html").as_uri() + "#without-seed=13")
    page.reload()
    assert "place" not in page.locator("section[data-table='1'] thead").inner_text()
    page.close()
