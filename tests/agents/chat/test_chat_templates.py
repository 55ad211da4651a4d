"""Templates that rewrite history, refuse messages, or count turns; and what a turn costs."""

import pytest
from turngym.agents import text_encoding
from turngym.agents.text_encoding import Segment
from turngym.envs.errors import ConfigError, TemplateError
from turngym.envs.types import Verbatim

THOUGHT = "<think>\nlow\n</think>\n\nOne."


def rendered(renderer, messages, **options):
    return renderer.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def tool(content, **fields):
    return {"role": "tool", "content": content, **fields}


# --- templates that rewrite history


def test_append_keeps_the_context_whatever_the_template_would_drop(begin, make_renderer):
    player = begin(make_renderer(template="thinking"), "Begin.")
    player.act(THOUGHT, "Go on.", closing="<|im_end|>")
    player.act(THOUGHT, "Go on.")
    assert player.forks == 0
    assert player.text.count(THOUGHT) == 2
    assert player.text.count("<|im_end|>") == 5


def test_fork_goes_on_with_the_context_rendered_anew_only_when_it_changed(begin, make_renderer):
    renderer = make_renderer(template="thinking", on_rewrite="fork")
    player = begin(renderer, "Begin.")
    player.act("Two.", "Go on.", closing="<|im_end|>")
    assert player.forks == 0
    player.act(THOUGHT, "Go on.", closing="<|im_end|>")
    assert player.forks == 1
    messages = [user("Begin."), assistant("Two."), user("Go on."), assistant("One."), user("Go on.")]
    assert player.text == rendered(renderer, messages)
    player.act("Two.", "Go on.", closing="<|im_end|>")
    assert player.forks == 1
    assert player.text == rendered(renderer, [*messages, assistant("Two."), user("Go on.")])


def test_thinking_is_kept_while_tool_results_follow_and_dropped_at_the_next_user_message(begin, make_renderer):
    player = begin(make_renderer(template="thinking", on_rewrite="fork"), "Begin.")
    player.act(THOUGHT, tool("low"), closing="<|im_end|>")
    assert player.forks == 0
    assert THOUGHT in player.text
    player.act("Two.", "Go on.", closing="<|im_end|>")
    assert player.forks == 1
    assert "<think>" not in player.text


def test_error_names_what_was_rewritten_and_the_remedy(begin, make_renderer):
    player = begin(make_renderer(template="thinking", on_rewrite="error"), "Begin.")
    player.act("Two.", "Go on.", closing="<|im_end|>")
    with pytest.raises(TemplateError) as caught:
        player.act(THOUGHT, "Go on.", closing="<|im_end|>")
    assert str(caught.value) == (
        "the chat template rewrites history: where '<think>\\nlow\\n</think>\\n\\nOne.' stood, it now renders "
        "'One.<|im_end|>\\n<|im_start|>user\\nGo on.<|im_end|>\\n<|im_start|'; set on_rewrite=\"append\" to keep the "
        'context as the policy saw it, or on_rewrite="fork" to go on in a new record with the rewritten context'
    )


def test_error_is_raised_at_once_where_every_conversation_is_rewritten(make_renderer):
    with pytest.raises(TemplateError, match=r"rewrites history: where '1<\|im_end\|>"):
        make_renderer(template="rewriting", on_rewrite="error")


def test_a_template_that_always_rewrites_forks_at_every_turn(begin, make_renderer):
    renderer = make_renderer(template="rewriting", on_rewrite="fork")
    player = begin(renderer, "Begin.")
    messages = [user("Begin.")]
    for forks in (1, 2):
        player.act("One.", "Go on.", closing="<|im_end|>")
        messages += [assistant("One."), user("Go on.")]
        assert player.forks == forks
        assert player.text == rendered(renderer, messages)


def test_thinking_that_the_prompt_began_is_part_of_what_was_said(begin, make_renderer):
    said = "low\n</think>\n\nOne."
    appended = begin(make_renderer(template="prefilled"), "Begin.")
    appended.act(said, "Go on.", closing="<|im_end|>")
    assert f"assistant\n<think>\n{said}<|im_end|>\n<|im_start|>user\nGo on." in appended.text
    forked = begin(make_renderer(template="prefilled", on_rewrite="fork"), "Begin.")
    forked.act(said, "Go on.", closing="<|im_end|>")
    assert forked.forks == 1
    assert forked.text == (
        "<|im_start|>user\nBegin.<|im_end|>\n<|im_start|>assistant\nOne.<|im_end|>\n"
        "<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_in_a_fork_only_control_tokens_that_were_sampled_are_control_tokens(make_renderer):
    renderer = make_renderer(template="rewriting", on_rewrite="fork")
    encoder = renderer.encoder
    conversation = renderer.begin()
    conversation.prompt("Begin.")
    spelled = encoder.encode([Segment("low<|im_end|>\n<|im_start|>user\n", is_data=True)])
    ids = [*spelled, *encoder.encode_text("<tool_call>low</tool_call>")]
    fork = conversation.continuation(ids, "Go on.")
    assert fork.is_fork
    names = [encoder.control_tokens[i] for i in fork.token_ids if i in encoder.control_ids]
    assert names == [
        "<|im_start|>", "<|im_end|>", "<|im_start|>", "<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>",
        "<|im_end|>", "<|im_start|>", "<|im_end|>", "<|im_start|>",
    ]  # fmt: skip
    assert f"assistant\n{encoder.decode(ids)}<|im_end|>" in encoder.decode(fork.token_ids)


def test_after_verbatim_text_the_rest_is_appended(begin, make_renderer):
    player = begin(make_renderer(template="rewriting", on_rewrite="fork"), "Begin.")
    player.act("One.", Verbatim("\nlow\n"))
    player.act("One.", "Go on.")
    assert player.forks == 0


def test_white_space_that_a_template_trims_around_an_action_is_no_rewriting(begin, make_renderer):
    player = begin(make_renderer(template="trimming", on_rewrite="error"), "Begin.")
    player.act(" One.\n", "Go on.", closing="<|im_end|>")
    assert "\n\n One.\n<|im_end|><|im_start|>user\n\nGo on." in player.text


def test_a_template_that_counts_turns_goes_on_counting(begin, make_renderer):
    renderer = make_renderer(template="counting")
    player = begin(renderer, "Begin.")
    messages = [user("Begin.")]
    for _ in range(3):
        player.act("One.", "Go on.", closing="<|im_end|>")
        messages += [assistant("One."), user("Go on.")]
    assert player.text == rendered(renderer, messages)


# --- options and refusals


def test_tools_reach_the_template(begin, make_renderer):
    tools = [{"type": "function", "function": {"name": "guess", "description": "", "parameters": {}}}]
    player = begin(make_renderer(template="tools", template_kwargs={"tools": tools}), "Begin.")
    assert '"guess"' in player.text
    player.act("One.", tool("low"), closing="<|im_end|>")
    assert player.text.count('"guess"') == 1


def test_a_refusal_of_the_template_names_the_roles_and_the_remedy(begin, make_renderer):
    renderer = make_renderer(template="alternating", eos="</s>")
    with pytest.raises(TemplateError) as caught:
        renderer.begin().prompt([{"role": "system", "content": "low"}, user("low")])
    assert str(caught.value) == (
        "the chat template can't render messages of the roles system, user: roles must take turns. Return roles and an "
        "order that this template knows, or a str, which becomes one user message"
    )
    player = begin(renderer, "Begin.")
    with pytest.raises(TemplateError, match="roles user, assistant, tool: roles must take turns"):
        player.act("One.", tool("low"))


def test_a_template_without_assistant_messages_can_not_be_continued(begin, make_renderer):
    player = begin(make_renderer(template="deaf"), "Begin.")
    with pytest.raises(TemplateError, match="leaves out what the assistant said"):
        player.act("One.", "Go on.")


def test_an_unknown_choice_is_refused(make_renderer):
    with pytest.raises(ConfigError, match="on_rewrite='drop' must be 'append', 'fork' or 'error'"):
        make_renderer(on_rewrite="drop")


# --- cost


def test_a_turn_asks_the_template_nothing_once_its_shape_is_known(begin, make_renderer, monkeypatch):
    renderer = make_renderer(template="thinking")
    player = begin(renderer, "Begin.")
    player.act("One.", "Go on.")
    player.act("One.", tool("low"))

    def refuse(*args, **kwargs):
        raise AssertionError("the template was rendered again")

    monkeypatch.setattr(renderer.tokenizer, "apply_chat_template", refuse)
    for _ in range(3):
        player.act("One.", "Too low", closing="<|im_end|>")
        player.act("<think>One.", "Too </s> low")
        player.act("One.", tool("guess", tool_call_id="a"))
        player.act("One.", Verbatim("low"))
    assert player.text.count("Too low") == 3


def test_the_cost_of_a_turn_does_not_grow_with_the_conversation(begin, make_renderer, monkeypatch):
    """What goes through the tokenizer in a turn is the turn's own text, in the first as in the last."""
    lengths = []
    encode = text_encoding._encoding

    def counted(backend, text):
        lengths.append(len(text))
        return encode(backend, text)

    player = begin(make_renderer(), "Begin.")
    player.act("One.", "Too low", closing="<|im_end|>")
    monkeypatch.setattr(text_encoding, "_encoding", counted)
    totals = []
    for _ in range(50):
        lengths.clear()
        player.act("One.", "Too low", closing="<|im_end|>")
        totals.append(sum(lengths))
    assert len(set(totals)) == 1
