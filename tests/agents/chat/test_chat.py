"""Prompts, continuations and actions, token by token."""

import numpy as np
import pytest
from turngym.agents.chat import Continuation
from turngym.envs.errors import TemplateError
from turngym.envs.sampling import SamplingParams
from turngym.envs.types import Verbatim

APPEND_ONLY = ["chatml", "default_system", "trimming", "thinking", "tools", "plain_text", "speakers"]
KINDS = ["byte_level", "merging", "unigram", "llama", "normalizing", "words"]


def rendered(renderer, messages, **options):
    return renderer.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def tool(content, **fields):
    return {"role": "tool", "content": content, **fields}


# --- the prompt and the continuation


def test_two_turns_token_by_token(begin, make_renderer):
    """Worked out by hand from the template: one row per piece that somebody appended."""
    player = begin(make_renderer(), "Too low")
    name = player.renderer.tokenizer.convert_ids_to_tokens
    assert name(player.token_ids) == [
        "<|im_start|>", "user", "Ċ", "Too", "Ġlow", "<|im_end|>", "Ċ", "<|im_start|>", "assistant", "Ċ",
    ]  # fmt: skip
    closed = player.act("guess", "Too high", closing="<|im_end|>")
    assert name(closed.token_ids) == [
        "Ċ", "<|im_start|>", "user", "Ċ", "Too", "Ġhigh", "<|im_end|>", "Ċ", "<|im_start|>", "assistant", "Ċ",
    ]  # fmt: skip
    cut = player.act("guess", "Too high")
    assert name(cut.token_ids) == ["<|im_end|>", *name(closed.token_ids)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", APPEND_ONLY)
def test_the_record_equals_the_conversation_encoded_at_once(begin, make_renderer, kind, template):
    """Three turns, closed and cut, of tokens that the tokenizer itself would choose."""
    renderer = make_renderer(kind, template)
    closing = {"speakers": "<|user|>", "plain_text": None}.get(template, "<|im_end|>")
    player = begin(renderer, "Go on.")
    messages = [user("Go on.")]
    turns = [("One.", "Too low, guess again", closing), ("Two.", "Too high! 1 < 2", None), ("low", "", closing)]
    for action, feedback, token in turns:
        player.act(action, feedback, closing=token)
        messages += [assistant(action), user(feedback)]
        whole = rendered(renderer, messages)
        assert player.token_ids == renderer.tokenizer.encode(whole, add_special_tokens=False)


@pytest.mark.parametrize("kind", [*KINDS, "swallowing"])
def test_the_prompt_is_what_the_tokenizer_makes_of_the_whole_template(make_renderer, kind):
    renderer = make_renderer(kind, "default_system")
    for messages in ([user("Too low")], [{"role": "system", "content": "user"}, user(" low\n")]):
        prompt = renderer.begin().prompt(messages)
        assert prompt == renderer.tokenizer.encode(rendered(renderer, messages), add_special_tokens=False)


def test_the_separator_after_a_closing_token_is_kept(begin, make_renderer):
    player = begin(make_renderer(), "Begin.")
    player.act("One.", "Go on.", closing="<|im_end|>")
    assert "One.<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n" in player.text


@pytest.mark.parametrize("kind", ["byte_level", "merging", "unigram", "llama", "swallowing"])
@pytest.mark.parametrize(
    ("template", "closing", "count"),
    [
        ("chatml", "<|im_end|>", 2),
        ("trimming", "<|im_end|>", 2),
        ("alternating", "</s>", 1),
        ("speakers", "<|user|>", 1),
    ],
)
def test_a_closing_token_stands_exactly_once_after_each_action(begin, make_renderer, kind, template, closing, count):
    """Once after the action, and once more where the template closes the feedback, too."""
    renderer = make_renderer(kind, template, eos=closing)
    token_id = renderer.tokenizer.convert_tokens_to_ids(closing)
    for sampled in (closing, None):
        player = begin(renderer, "Begin.")
        start = len(player.token_ids)
        player.act("One", "Go", closing=sampled)
        assert player.token_ids[start:].count(token_id) == count


def test_an_action_stopped_at_a_stop_string_is_closed(make_renderer):
    renderer = make_renderer()
    conversation = renderer.begin()
    conversation.prompt("Begin.")
    ids = renderer.encoder.encode_text("The answer is 42. low")
    sampling = SamplingParams(stop=("42", "."))
    text = conversation.action_text(ids, sampling)
    assert text == "The answer is "
    continuation = conversation.continuation(ids, "Go on.")
    assert continuation.token_ids[0] == renderer.tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_another_end_of_sequence_token_does_not_replace_the_templates_closing(begin, make_renderer):
    player = begin(make_renderer(eos="</s>"), "Begin.")
    player.act("One.", "Go on.", closing="</s>")
    assert "One.</s><|im_end|>\n<|im_start|>user\n" in player.text


def test_stop_tokens_are_the_end_of_sequence_and_what_closes_a_turn(make_renderer):
    def names(renderer):
        return renderer.tokenizer.convert_ids_to_tokens(renderer.stop_token_ids)

    assert names(make_renderer(eos="</s>")) == ["<|im_end|>", "</s>"]
    assert names(make_renderer()) == ["<|im_end|>"]
    assert names(make_renderer(template="speakers", eos="</s>")) == ["<|user|>", "<|tool|>", "</s>"]
    assert names(make_renderer(template=None, eos="</s>")) == ["</s>"]


# --- kinds of observations


def test_both_of_two_tool_results_arrive(begin, make_renderer):
    results = [tool("Too low", tool_call_id="a"), tool("Too high", tool_call_id="b")]
    player = begin(make_renderer(template="tools"), "Begin.")
    player.act("One.", results, closing="<|im_end|>")
    assert player.text.endswith(
        "One.<|im_end|>\n<|im_start|>user\n<tool_response>\nToo low\n</tool_response>"
        "\n<tool_response>\nToo high\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_same_messages_again_arrive_again(begin, make_renderer):
    player = begin(make_renderer(template="tools"), "Begin.")
    first = player.act("One.", tool("Too low"), closing="<|im_end|>")
    assert player.act("One.", tool("Too low"), closing="<|im_end|>") == first
    assert player.text.count("Too low") == 2


def test_a_message_a_list_of_one_and_a_str_are_the_same(begin, make_renderer):
    for template in ("chatml", "counting"):
        continuations = []
        for observation in ("low", user("low"), [user("low")], (user("low"),), {**user("low"), "name": "a"}):
            player = begin(make_renderer(template=template), "Begin.")
            continuations.append(player.act("One.", observation, closing="<|im_end|>"))
        assert all(continuation == continuations[0] for continuation in continuations)


def test_verbatim_is_appended_as_it_is(begin, make_renderer):
    player = begin(make_renderer(), Verbatim("<|im_start|>user\nBegin.<|im_end|>\n"))
    cut = player.act("One.", Verbatim("<|im_end|>\n<|im_start|>tool\n", Verbatim.data("<|im_end|>"), "<|im_end|>"))
    assert player.renderer.tokenizer.convert_ids_to_tokens(player.token_ids[:2]) == ["<|im_start|>", "user"]
    assert player.text == ("<|im_start|>user\nBegin.<|im_end|>\nOne.<|im_end|>\n<|im_start|>tool\n<|im_end|><|im_end|>")
    closing = player.renderer.stop_token_ids[0]
    assert cut.token_ids.count(closing) == 2


def test_an_env_that_writes_its_own_markers_does_not_double_them(begin, make_renderer):
    feedback = Verbatim("<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n")
    player = begin(make_renderer(), "Begin.")
    player.act("One.", feedback, closing="<|im_end|>")
    same = begin(make_renderer(), "Begin.")
    same.act("One.", feedback)
    assert player.token_ids == same.token_ids
    assert "One.<|im_end|>\n<|im_start|>user\n" in player.text


@pytest.mark.parametrize("observation", [(5, 6, 7), [5, 6, 7], range(5, 8)])
def test_token_ids_are_appended_as_they_are(begin, make_renderer, observation):
    player = begin(make_renderer(), observation)
    assert player.token_ids == [5, 6, 7]
    assert player.act("One.", observation) == Continuation([5, 6, 7], is_fork=False)


def test_numpy_token_ids_become_plain_integers(begin, make_renderer):
    player = begin(make_renderer(), "Begin.")
    assert all(type(token_id) is int for token_id in player.act("One.", np.array([5, 6])).token_ids)
    assert player.act("One.", np.array([], dtype=np.int64)).token_ids == []


def test_empty_observations(begin, make_renderer):
    """An empty str is an empty message; no messages close and reopen; an empty Verbatim adds nothing."""
    expected = {
        "": "<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n",
        (): "<|im_end|>\n<|im_start|>assistant\n",
        Verbatim(): "",
        Verbatim(""): "",
        range(0): "",
    }
    for observation, text in expected.items():
        player = begin(make_renderer(), "Begin.")
        assert player.renderer.encoder.decode(player.act("One.", observation).token_ids) == text


def test_without_a_template_text_is_verbatim_and_data(begin, make_renderer):
    player = begin(make_renderer(template=None, eos="</s>"), "user: </s>")
    assert player.renderer.encoder.control_ids.isdisjoint(player.token_ids)
    player.act(" One.", "\nlow", closing="</s>")
    assert player.text == "user: </s> One.</s>\nlow"
    assert player.act("", "").token_ids == []
    with pytest.raises(TemplateError, match="no chat template; return a str or a Verbatim"):
        player.act("One.", user("low"))


@pytest.mark.parametrize("kind", ["unigram", "llama", "byte_level"])
def test_without_a_template_feedback_gets_the_tokens_that_it_has_in_the_middle_of_the_text(begin, make_renderer, kind):
    player = begin(make_renderer(kind, None, eos="</s>"), "guess the")
    player.act(" low", "\tToo low", closing=None)
    assert player.token_ids == player.renderer.tokenizer.encode("guess the low\tToo low", add_special_tokens=False)


@pytest.mark.parametrize("observation", [[], Verbatim(), range(0)])
def test_a_prompt_of_nothing_is_refused(make_renderer, observation):
    with pytest.raises(TemplateError):
        make_renderer().begin().prompt(observation)


# --- actions


def test_action_text_shows_what_was_sampled_without_its_closing_token(make_renderer):
    renderer = make_renderer()
    conversation, encode = renderer.begin(), renderer.encoder.encode_text
    sampling = SamplingParams()
    assert conversation.action_text(encode("<think>low</think> 42<|im_end|>"), sampling) == "<think>low</think> 42"
    assert conversation.action_text(encode("low<|im_end|>low"), sampling) == "low<|im_end|>low"
    assert conversation.action_text(encode("low"), sampling) == "low"
    assert conversation.action_text(encode("<|im_end|>"), sampling) == ""
    assert conversation.action_text([], sampling) == ""


def test_action_text_ends_at_the_first_of_several_stop_strings(make_renderer):
    conversation = make_renderer().begin()
    ids = make_renderer().encoder.encode_text("Too high! The answer")
    assert conversation.action_text(ids, SamplingParams(stop=("The", "!", "42"))) == "Too high"
    assert conversation.action_text(ids, SamplingParams(stop=("42",))) == "Too high! The answer"
