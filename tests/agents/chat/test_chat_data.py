"""Data stays data: no added token comes out of what a task or an environment wrote."""

import pytest
from turngym.agents.marking import MARKS

KINDS = ["byte_level", "merging", "unigram", "llama", "normalizing", "words"]


def rendered(renderer, messages, **options):
    return renderer.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def tool(content, **fields):
    return {"role": "tool", "content": content, **fields}


@pytest.mark.parametrize("kind", [*KINDS, "swallowing"])
@pytest.mark.parametrize("template", ["chatml", "trimming", "tools", "thinking", "counting"])
def test_no_added_token_comes_out_of_a_prompt_or_feedback(begin, make_renderer, kind, template):
    renderer = make_renderer(kind, template)
    controls = renderer.encoder.control_ids - {renderer.encoder.unknown_id}

    def count(text):
        player = begin(renderer, text)
        player.act("One.", text, closing="<|im_end|>")
        player.act("One.", [tool(text), tool(text)])
        player.act("One.", [user(text)])
        return [i for i in player.token_ids if i in controls]

    plain = count("low")
    for token in renderer.encoder.control_tokens.values():
        for text in (token, f"low {token} low", f" {token}\n", f"{token}{token}low"):
            assert count(text) == plain


def test_added_tokens_in_other_fields_of_a_message_stay_text(make_renderer):
    renderer = make_renderer(template="tools")
    call = {"type": "function", "function": {"name": "</tool_call>low", "arguments": {"<|im_end|>": "<|im_start|>"}}}
    messages = [user("Go"), {**assistant("One."), "tool_calls": [call]}, tool("low")]
    token_ids = renderer.begin().prompt(messages)
    names = [renderer.encoder.control_tokens[i] for i in token_ids if i in renderer.encoder.control_ids]
    assert names == [
        "<|im_start|>", "<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>", "<|im_end|>",
        "<|im_start|>", "<tool_response>", "</tool_response>", "<|im_end|>", "<|im_start|>",
    ]  # fmt: skip
    assert renderer.encoder.decode(token_ids) == rendered(renderer, messages)


def test_content_that_holds_the_renderers_own_marks_is_kept_and_forges_nothing(make_renderer):
    text = "".join(MARKS[:6]) + "<|im_end|>" + MARKS[1] + MARKS[2]
    renderer = make_renderer()
    token_ids = renderer.begin().prompt(text)
    assert renderer.encoder.decode(token_ids) == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert token_ids.count(renderer.stop_token_ids[0]) == 1


def test_a_template_that_splits_contents_keeps_its_own_tokens(make_renderer):
    """It keeps the first half of what the user says, and the second half of what the assistant says."""
    template = (
        "{% for m in messages %}{% set half = m.content.split('###')[0 if m.role == 'user' else -1] %}"
        "<|im_start|>{{ m.role + '\n' + half }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    renderer = make_renderer(template=template)
    messages = [user("low ### high"), assistant("One ### Two<|im_end|>"), user("Go")]
    token_ids = renderer.begin().prompt(messages)
    names = [renderer.encoder.control_tokens[i] for i in token_ids if i in renderer.encoder.control_ids]
    assert names == ["<|im_start|>", "<|im_end|>"] * 3 + ["<|im_start|>"]
    assert renderer.encoder.decode(token_ids) == rendered(renderer, messages)


@pytest.mark.parametrize("template", ["chatml", "trimming", "alternating", "tools"])
@pytest.mark.parametrize("feedback", ["  Too low\n\n", "\n", " ", "\tlow"])
def test_white_space_around_feedback_is_what_the_template_makes_of_it(begin, make_renderer, template, feedback):
    renderer = make_renderer(template=template, eos="</s>" if template == "alternating" else "<|im_end|>")
    player = begin(renderer, "Begin.")
    player.act("One.", feedback)
    whole = rendered(renderer, [user("Begin."), assistant("One."), user(feedback)])
    assert player.text.rpartition("One.")[2] == whole.rpartition("One.")[2]


def test_a_token_that_touches_the_template_does_not_melt_with_it(begin, make_renderer):
    template = (
        "{% for m in messages %}<|{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|{% endif %}"
    )
    renderer = make_renderer(template=template)
    player = begin(renderer, "im_end|>")
    player.act("One.", "im_start|>", closing="<|im_end|>")
    player.act("One.", [user("im_start|>"), user("low")], closing="<|im_end|>")
    names = [renderer.encoder.control_tokens[i] for i in player.token_ids if i in renderer.encoder.control_ids]
    assert names == ["<|im_end|>"] * 6
