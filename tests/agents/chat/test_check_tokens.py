import io

import pytest
from rich.console import Console
from turngym.agents.check_tokens import TokenCheck, TokenReport, check_tokens
from turngym.envs.errors import ConfigError

REMEDY = (
    'choose on_rewrite="append" to keep the context as the policy saw it, or on_rewrite="fork" to go on in a new '
    "record with the rewritten context"
)
ROWS = [
    "append-only over turns",
    "separators are kept",
    "thinking is kept",
    "cut turns are closed",
    "tool results are kept",
    "sampling can stop",
    "added tokens in feedback stay text",
    "the mask is exact",
]


def failed(report):
    return {check.name: check for check in report.checks if check.passed is False}


@pytest.mark.parametrize("template", ["chatml", "default_system", "trimming", "tools", "counting", "speakers"])
@pytest.mark.parametrize("kind", ["byte_level", "merging", "unigram", "llama", "normalizing", "swallowing"])
def test_a_sound_template_passes_every_check(make_tokenizer, kind, template):
    report = check_tokens(make_tokenizer(kind, template))
    assert [check.name for check in report.checks] == ROWS
    assert [check.passed for check in report.checks] == [True] * len(ROWS), str(report)
    assert report.passed


@pytest.mark.parametrize(
    ("template", "row", "detail"),
    [
        (
            "rewriting",
            "append-only over turns",
            "history is rewritten: where '1<|im_end|>\\n<|im_start|>user\\nBegin.<|im_end|>\\n<|im_start|>as' stood, "
            "it now renders '3<|im_end|>\\n<|im_start|>user\\nBegin.<|im_end|>\\n<|im_start|>as'",
        ),
        (
            "thinking",
            "thinking is kept",
            "history is rewritten: where '<think>\\nA thought.\\n</think>\\n\\nAn answer.' stood, it now renders "
            "'An answer.<|im_end|>\\n<|im_start|>user\\nGo on 0.<|im_end|>\\n<|i'",
        ),
        (
            "prefilled",
            "thinking is kept",
            "history is rewritten: where '<think>A thought.\\n</think>\\n\\nAn answer.' stood, it now renders "
            "'An answer.<|im_end|>\\n<|im_start|>user\\nGo on 0.<|im_end|>\\n<|i'",
        ),
    ],
)
def test_rewritten_history_fails_until_a_choice_is_made(make_tokenizer, template, row, detail):
    report = check_tokens(make_tokenizer(template=template))
    assert not report.passed
    assert failed(report) == {row: TokenCheck(name=row, passed=False, detail=detail, remedy=REMEDY)}
    for choice in ("append", "fork"):
        report = check_tokens(make_tokenizer(template=template), on_rewrite=choice)
        assert report.passed, str(report)
    assert not check_tokens(make_tokenizer(template=template), on_rewrite="error").passed


def test_lost_tool_results_fail(make_tokenizer):
    report = check_tokens(make_tokenizer(template="losing_tools"))
    assert failed(report) == {
        "tool results are kept": TokenCheck(
            name="tool results are kept",
            passed=False,
            detail="the template leaves out the first result",
            remedy="return tool results as a str, which becomes one user message",
        )
    }


def test_a_template_that_takes_no_tool_messages_is_no_failure(make_tokenizer):
    report = check_tokens(make_tokenizer(template="alternating", eos="</s>"))
    assert report.passed
    (row,) = [check for check in report.checks if check.passed is None]
    assert row.name == "tool results are kept"
    assert "roles must take turns" in row.detail


def test_a_template_that_is_deaf_to_the_assistant_fails_by_name(make_tokenizer):
    report = check_tokens(make_tokenizer(template="deaf"))
    assert set(failed(report)) == {
        "append-only over turns",
        "separators are kept",
        "added tokens in feedback stay text",
        "the mask is exact",
    }
    assert "leaves out what the assistant said" in failed(report)["separators are kept"].detail


def test_separators_that_depend_on_the_feedback_fail(make_tokenizer):
    """The template closes a turn twice after these very words, which no probe holds."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}"
        "{% if loop.index0 > 2 and m.content.endswith('2.') %}<|im_end|>{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    report = check_tokens(make_tokenizer(template=template))
    row = failed(report)["separators are kept"]
    assert row.detail.startswith("after turn 2 stands '<|im_end|>\\n<|im_start|>user\\nFeedback 2.<|im_end|>\\n")
    assert row.remedy == "return Verbatim observations that write the template's markers themselves"


def test_a_template_that_changes_contents_fails(make_tokenizer):
    """It turns one token that data spells into another."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content | replace('<tool_call>', '<|im_end|>') }}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    row = failed(check_tokens(make_tokenizer(template=template)))["added tokens in feedback stay text"]
    assert row.detail == "1 of 14 change the tokens of the template around them: <tool_call>"


def test_a_policy_that_can_not_stop_fails(make_tokenizer):
    tokenizer = make_tokenizer(template="plain_text")
    tokenizer.eos_token = None
    report = check_tokens(tokenizer)
    assert set(failed(report)) == {"sampling can stop"}
    assert failed(report)["sampling can stop"].remedy == "set the tokenizer's eos_token"


def test_without_a_template_text_is_checked(make_tokenizer):
    report = check_tokens(make_tokenizer(template=None))
    assert report.passed
    assert [check.name for check in report.checks] == ["chat template", *ROWS[-3:]]


def test_a_saved_tokenizer_is_checked_by_its_folder(make_tokenizer, tmp_path):
    make_tokenizer(template="thinking").save_pretrained(tmp_path)
    report = check_tokens(tmp_path)
    assert report.model == str(tmp_path)
    assert set(failed(report)) == {"thinking is kept"}
    assert check_tokens(str(tmp_path)) == report


def test_a_path_without_a_tokenizer_is_one_clear_error(tmp_path):
    takes = "give a folder that holds a tokenizer.json, or the Hub name of a model that is downloaded already"
    with pytest.raises(ConfigError) as caught:
        check_tokens(tmp_path)
    assert str(caught.value) == f"{tmp_path} holds no tokenizer; {takes}"
    with pytest.raises(ConfigError) as caught:
        check_tokens(str(tmp_path / "missing"))
    assert str(caught.value) == f"no tokenizer could be loaded from {tmp_path}/missing (no such folder); {takes}"
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="Expecting property name") as caught:
        check_tokens(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_report_is_a_table():
    report = TokenReport(
        model="m",
        checks=(
            TokenCheck(name="one", passed=True, detail="fine"),
            TokenCheck(name="two", passed=False, detail="[INST] is lost", remedy="mend it"),
            TokenCheck(name="three", passed=None, detail="nothing there"),
        ),
    )
    assert not report.passed
    assert str(report) == (
        "tokens of m\n"
        "  ok       one: fine\n"
        "  FAILED   two: [INST] is lost\n"
        "           remedy: mend it\n"
        "  skipped  three: nothing there"
    )
    printed = io.StringIO()
    Console(file=printed, width=100).print(report)
    table = printed.getvalue()
    for text in ("tokens of m", "ok", "FAILED", "skipped", "[INST] is lost", "remedy: mend it"):
        assert text in table
