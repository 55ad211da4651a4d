import numpy as np
import pytest
from turngym.agents import text_encoding
from turngym.agents.chat import Continuation
from turngym.agents.marking import MARKS
from turngym.agents.text_encoding import Segment
from turngym.envs.errors import ConfigError, TemplateError
from turngym.envs.sampling import SamplingParams
from turngym.envs.types import Verbatim

APPEND_ONLY = ["chatml", "default_system", "trimming", "thinking", "tools", "plain_text", "speakers"]
KINDS = ["byte_level", "merging", "unigram", "llama", "normalizing", "words"]


class Player:
    """Plays a conversation, and keeps the record as an executor does."""

    def __init__(self, renderer, observation):
        self.renderer = renderer
        self.conversation = renderer.begin()
        self.token_ids = self.conversation.prompt(observation)
        self.forks = 0

    def act(self, text, observation, *, closing=None):
        """Sample a text, and a closing token unless the action was cut; returns the continuation."""
        ids = self.renderer.encoder.encode_text(text, self.renderer.encoder.follows(self.token_ids))
        ids += [] if closing is None else [self.renderer.tokenizer.convert_tokens_to_ids(closing)]
        decoded = self.conversation.action_text(ids, SamplingParams())
        reason = "length" if closing is None else "stop"
        continuation = self.conversation.continuation(ids, decoded, reason, observation)
        if continuation.is_fork:
            self.token_ids, self.forks = list(continuation.token_ids), self.forks + 1
        else:
            self.token_ids += ids + continuation.token_ids
        return continuation

    @property
    def text(self):
        return self.renderer.encoder.decode(self.token_ids)


def rendered(renderer, messages, **options):
    return renderer.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def tool(content, **fields):
    return {"role": "tool", "content": content, **fields}


# --- the prompt and the continuation


def test_two_turns_token_by_token(make_renderer):
    """Worked out by hand from the template: one row per piece that somebody appended."""
    player = Player(make_renderer(), "Too low")
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
def test_the_record_equals_the_conversation_encoded_at_once(make_renderer, kind, template):
    """Three turns, closed and cut, of tokens that the tokenizer itself would choose."""
    renderer = make_renderer(kind, template)
    closing = {"speakers": "<|user|>", "plain_text": None}.get(template, "<|im_end|>")
    player = Player(renderer, "Go on.")
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


def test_the_separator_after_a_closing_token_is_kept(make_renderer):
    player = Player(make_renderer(), "Begin.")
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
def test_a_closing_token_stands_exactly_once_after_each_action(make_renderer, kind, template, closing, count):
    """Once after the action, and once more where the template closes the feedback, too."""
    renderer = make_renderer(kind, template, eos=closing)
    token_id = renderer.tokenizer.convert_tokens_to_ids(closing)
    for sampled in (closing, None):
        player = Player(renderer, "Begin.")
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
    continuation = conversation.continuation(ids, text, "stop", "Go on.")
    assert continuation.token_ids[0] == renderer.tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_another_end_of_sequence_token_does_not_replace_the_templates_closing(make_renderer):
    player = Player(make_renderer(eos="</s>"), "Begin.")
    player.act("One.", "Go on.", closing="</s>")
    assert "One.</s><|im_end|>\n<|im_start|>user\n" in player.text


def test_stop_tokens_are_the_end_of_sequence_and_what_closes_a_turn(make_renderer):
    def names(renderer):
        return renderer.tokenizer.convert_ids_to_tokens(renderer.stop_token_ids)

    assert names(make_renderer(eos="</s>")) == ["</s>", "<|im_end|>"]
    assert names(make_renderer()) == ["<|im_end|>"]
    assert names(make_renderer(template="speakers", eos="</s>")) == ["</s>", "<|user|>", "<|tool|>"]
    assert names(make_renderer(template=None, eos="</s>")) == ["</s>"]


# --- kinds of observations


def test_both_of_two_tool_results_arrive(make_renderer):
    results = [tool("Too low", tool_call_id="a"), tool("Too high", tool_call_id="b")]
    player = Player(make_renderer(template="tools"), "Begin.")
    player.act("One.", results, closing="<|im_end|>")
    assert player.text.endswith(
        "One.<|im_end|>\n<|im_start|>user\n<tool_response>\nToo low\n</tool_response>"
        "\n<tool_response>\nToo high\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_same_messages_again_arrive_again(make_renderer):
    player = Player(make_renderer(template="tools"), "Begin.")
    first = player.act("One.", tool("Too low"), closing="<|im_end|>")
    assert player.act("One.", tool("Too low"), closing="<|im_end|>") == first
    assert player.text.count("Too low") == 2


def test_a_message_a_list_of_one_and_a_str_are_the_same(make_renderer):
    for template in ("chatml", "counting"):
        continuations = []
        for observation in ("low", user("low"), [user("low")], (user("low"),), {**user("low"), "name": "a"}):
            player = Player(make_renderer(template=template), "Begin.")
            continuations.append(player.act("One.", observation, closing="<|im_end|>"))
        assert all(continuation == continuations[0] for continuation in continuations)


def test_verbatim_is_appended_as_it_is(make_renderer):
    player = Player(make_renderer(), Verbatim("<|im_start|>user\nBegin.<|im_end|>\n"))
    cut = player.act("One.", Verbatim("<|im_end|>\n<|im_start|>tool\n", Verbatim.data("<|im_end|>"), "<|im_end|>"))
    assert player.renderer.tokenizer.convert_ids_to_tokens(player.token_ids[:2]) == ["<|im_start|>", "user"]
    assert player.text == ("<|im_start|>user\nBegin.<|im_end|>\nOne.<|im_end|>\n<|im_start|>tool\n<|im_end|><|im_end|>")
    closing = player.renderer.stop_token_ids[0]
    assert cut.token_ids.count(closing) == 2


def test_an_env_that_writes_its_own_markers_does_not_double_them(make_renderer):
    feedback = Verbatim("<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n")
    player = Player(make_renderer(), "Begin.")
    player.act("One.", feedback, closing="<|im_end|>")
    same = Player(make_renderer(), "Begin.")
    same.act("One.", feedback)
    assert player.token_ids == same.token_ids
    assert "One.<|im_end|>\n<|im_start|>user\n" in player.text


@pytest.mark.parametrize("observation", [(5, 6, 7), [5, 6, 7], range(5, 8)])
def test_token_ids_are_appended_as_they_are(make_renderer, observation):
    player = Player(make_renderer(), observation)
    assert player.token_ids == [5, 6, 7]
    assert player.act("One.", observation) == Continuation([5, 6, 7], is_fork=False)


def test_numpy_token_ids_become_plain_integers(make_renderer):
    player = Player(make_renderer(), "Begin.")
    assert all(type(token_id) is int for token_id in player.act("One.", np.array([5, 6])).token_ids)
    assert player.act("One.", np.array([], dtype=np.int64)).token_ids == []


def test_empty_observations(make_renderer):
    """An empty str is an empty message; no messages close and reopen; an empty Verbatim adds nothing."""
    expected = {
        "": "<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n",
        (): "<|im_end|>\n<|im_start|>assistant\n",
        Verbatim(): "",
        Verbatim(""): "",
        range(0): "",
    }
    for observation, text in expected.items():
        player = Player(make_renderer(), "Begin.")
        assert player.renderer.encoder.decode(player.act("One.", observation).token_ids) == text


def test_without_a_template_text_is_verbatim_and_data(make_renderer):
    player = Player(make_renderer(template=None, eos="</s>"), "user: </s>")
    assert player.renderer.encoder.control_ids.isdisjoint(player.token_ids)
    player.act(" One.", "\nlow", closing="</s>")
    assert player.text == "user: </s> One.</s>\nlow"
    assert player.act("", "").token_ids == []
    with pytest.raises(TemplateError, match="no chat template; return a str or a Verbatim"):
        player.act("One.", user("low"))


@pytest.mark.parametrize("kind", ["unigram", "llama", "byte_level"])
def test_without_a_template_feedback_gets_the_tokens_that_it_has_in_the_middle_of_the_text(make_renderer, kind):
    player = Player(make_renderer(kind, None, eos="</s>"), "guess the")
    player.act(" low", "\tToo low", closing=None)
    assert player.token_ids == player.renderer.tokenizer.encode("guess the low\tToo low", add_special_tokens=False)


@pytest.mark.parametrize("observation", [[], Verbatim(), range(0)])
def test_a_prompt_of_nothing_is_refused(make_renderer, observation):
    with pytest.raises(TemplateError):
        make_renderer().begin().prompt(observation)


# --- data


@pytest.mark.parametrize("kind", [*KINDS, "swallowing"])
@pytest.mark.parametrize("template", ["chatml", "trimming", "tools", "thinking", "counting"])
def test_no_added_token_comes_out_of_a_prompt_or_feedback(make_renderer, kind, template):
    renderer = make_renderer(kind, template)
    controls = renderer.encoder.control_ids - {renderer.encoder.unknown_id}

    def count(text):
        player = Player(renderer, text)
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


def test_a_token_that_touches_the_template_does_not_melt_with_it(make_renderer):
    template = (
        "{% for m in messages %}<|{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|{% endif %}"
    )
    renderer = make_renderer(template=template)
    player = Player(renderer, "im_end|>")
    player.act("One.", "im_start|>", closing="<|im_end|>")
    player.act("One.", [user("im_start|>"), user("low")], closing="<|im_end|>")
    names = [renderer.encoder.control_tokens[i] for i in player.token_ids if i in renderer.encoder.control_ids]
    assert names == ["<|im_end|>"] * 6


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


# --- templates that rewrite history


THOUGHT = "<think>\nlow\n</think>\n\nOne."


def test_append_keeps_the_context_whatever_the_template_would_drop(make_renderer):
    player = Player(make_renderer(template="thinking"), "Begin.")
    player.act(THOUGHT, "Go on.", closing="<|im_end|>")
    player.act(THOUGHT, "Go on.")
    assert player.forks == 0
    assert player.text.count(THOUGHT) == 2
    assert player.text.count("<|im_end|>") == 5


def test_fork_goes_on_with_the_context_rendered_anew_only_when_it_changed(make_renderer):
    renderer = make_renderer(template="thinking", on_rewrite="fork")
    player = Player(renderer, "Begin.")
    player.act("Two.", "Go on.", closing="<|im_end|>")
    assert player.forks == 0
    player.act(THOUGHT, "Go on.", closing="<|im_end|>")
    assert player.forks == 1
    messages = [user("Begin."), assistant("Two."), user("Go on."), assistant("One."), user("Go on.")]
    assert player.text == rendered(renderer, messages)
    player.act("Two.", "Go on.", closing="<|im_end|>")
    assert player.forks == 1
    assert player.text == rendered(renderer, [*messages, assistant("Two."), user("Go on.")])


def test_thinking_is_kept_while_tool_results_follow_and_dropped_at_the_next_user_message(make_renderer):
    player = Player(make_renderer(template="thinking", on_rewrite="fork"), "Begin.")
    player.act(THOUGHT, tool("low"), closing="<|im_end|>")
    assert player.forks == 0
    assert THOUGHT in player.text
    player.act("Two.", "Go on.", closing="<|im_end|>")
    assert player.forks == 1
    assert "<think>" not in player.text


def test_error_names_what_was_rewritten_and_the_remedy(make_renderer):
    player = Player(make_renderer(template="thinking", on_rewrite="error"), "Begin.")
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


def test_a_template_that_always_rewrites_forks_at_every_turn(make_renderer):
    renderer = make_renderer(template="rewriting", on_rewrite="fork")
    player = Player(renderer, "Begin.")
    messages = [user("Begin.")]
    for forks in (1, 2):
        player.act("One.", "Go on.", closing="<|im_end|>")
        messages += [assistant("One."), user("Go on.")]
        assert player.forks == forks
        assert player.text == rendered(renderer, messages)


def test_thinking_that_the_prompt_began_is_part_of_what_was_said(make_renderer):
    said = "low\n</think>\n\nOne."
    appended = Player(make_renderer(template="prefilled"), "Begin.")
    appended.act(said, "Go on.", closing="<|im_end|>")
    assert f"assistant\n<think>\n{said}<|im_end|>\n<|im_start|>user\nGo on." in appended.text
    forked = Player(make_renderer(template="prefilled", on_rewrite="fork"), "Begin.")
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
    fork = conversation.continuation(ids, encoder.decode(ids), "length", "Go on.")
    assert fork.is_fork
    names = [encoder.control_tokens[i] for i in fork.token_ids if i in encoder.control_ids]
    assert names == [
        "<|im_start|>", "<|im_end|>", "<|im_start|>", "<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>",
        "<|im_end|>", "<|im_start|>", "<|im_end|>", "<|im_start|>",
    ]  # fmt: skip
    assert f"assistant\n{encoder.decode(ids)}<|im_end|>" in encoder.decode(fork.token_ids)


def test_after_verbatim_text_the_rest_is_appended(make_renderer):
    player = Player(make_renderer(template="rewriting", on_rewrite="fork"), "Begin.")
    player.act("One.", Verbatim("\nlow\n"))
    player.act("One.", "Go on.")
    assert player.forks == 0


def test_white_space_that_a_template_trims_around_an_action_is_no_rewriting(make_renderer):
    player = Player(make_renderer(template="trimming", on_rewrite="error"), "Begin.")
    player.act(" One.\n", "Go on.", closing="<|im_end|>")
    assert "\n\n One.\n<|im_end|><|im_start|>user\n\nGo on." in player.text


def test_a_template_that_counts_turns_goes_on_counting(make_renderer):
    renderer = make_renderer(template="counting")
    player = Player(renderer, "Begin.")
    messages = [user("Begin.")]
    for _ in range(3):
        player.act("One.", "Go on.", closing="<|im_end|>")
        messages += [assistant("One."), user("Go on.")]
    assert player.text == rendered(renderer, messages)


# --- options and refusals


def test_tools_reach_the_template(make_renderer):
    tools = [{"type": "function", "function": {"name": "guess", "description": "", "parameters": {}}}]
    player = Player(make_renderer(template="tools", template_kwargs={"tools": tools}), "Begin.")
    assert '"guess"' in player.text
    player.act("One.", tool("low"), closing="<|im_end|>")
    assert player.text.count('"guess"') == 1


def test_a_refusal_of_the_template_names_the_roles_and_the_remedy(make_renderer):
    renderer = make_renderer(template="alternating", eos="</s>")
    with pytest.raises(TemplateError) as caught:
        renderer.begin().prompt([{"role": "system", "content": "low"}, user("low")])
    assert str(caught.value) == (
        "the chat template can't render messages of the roles system, user: roles must take turns. Return roles and an "
        "order that this template knows, or a str, which becomes one user message"
    )
    player = Player(renderer, "Begin.")
    with pytest.raises(TemplateError, match="roles user, assistant, tool: roles must take turns"):
        player.act("One.", tool("low"))


def test_a_template_without_assistant_messages_can_not_be_continued(make_renderer):
    player = Player(make_renderer(template="deaf"), "Begin.")
    with pytest.raises(TemplateError, match="leaves out what the assistant said"):
        player.act("One.", "Go on.")


def test_an_unknown_choice_is_refused(make_renderer):
    with pytest.raises(ConfigError, match="on_rewrite='drop' must be 'append', 'fork' or 'error'"):
        make_renderer(on_rewrite="drop")


# --- cost


def test_a_turn_asks_the_template_nothing_once_its_shape_is_known(make_renderer, monkeypatch):
    renderer = make_renderer(template="thinking")
    player = Player(renderer, "Begin.")
    player.act("One.", "Go on.")

    def refuse(*args, **kwargs):
        raise AssertionError("the template was rendered again")

    monkeypatch.setattr(renderer.tokenizer, "apply_chat_template", refuse)
    for _ in range(3):
        player.act("One.", "Too low", closing="<|im_end|>")
        player.act("<think>One.", "Too </s> low")
        player.act("One.", Verbatim("low"))
    assert player.text.count("Too low") == 3


def test_the_cost_of_a_turn_does_not_grow_with_the_conversation(make_renderer, monkeypatch):
    """What goes through the tokenizer in a turn is the turn's own text, in the first as in the last."""
    lengths = []
    encode = text_encoding._encoding

    def counted(backend, text):
        lengths.append(len(text))
        return encode(backend, text)

    player = Player(make_renderer(), "Begin.")
    player.act("One.", "Too low", closing="<|im_end|>")
    monkeypatch.setattr(text_encoding, "_encoding", counted)
    totals = []
    for _ in range(50):
        lengths.clear()
        player.act("One.", "Too low", closing="<|im_end|>")
        totals.append(sum(lengths))
    assert len(set(totals)) == 1
