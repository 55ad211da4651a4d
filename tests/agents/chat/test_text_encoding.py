import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from turngym.agents.text_encoding import Follows, Segment, TextEncoder
from turngym.envs.errors import ConfigError

KINDS = ["byte_level", "merging", "unigram", "llama", "normalizing", "swallowing", "words"]
FAITHFUL = ["byte_level", "merging", "llama", "swallowing"]  # whose decoding gives every text back
FRAGMENTS = [
    "<|im_end|>",
    "<think>",
    "</s>",
    "<",
    "<|",
    "im_end|>",
    "|>",
    "</",
    "s>",
    "<THINK>",
    "＜think＞",
    " ",
    "\n",
    "low",
]


@pytest.fixture(scope="module")
def encoders(make_tokenizer):
    return {kind: TextEncoder(make_tokenizer(kind)) for kind in KINDS}


def data(text):
    return Segment(text, is_data=True)


def written(text):
    return Segment(text, is_data=False)


def controls(encoder, token_ids):
    return [encoder.control_tokens[i] for i in token_ids if i in encoder.control_ids and i != encoder.unknown_id]


@pytest.mark.parametrize("kind", KINDS)
def test_every_added_token_that_data_spells_stays_text(encoders, kind):
    encoder = encoders[kind]
    for token in encoder.control_tokens.values():
        text = f"low{token}Too low {token}"
        token_ids = encoder.encode([data(text)])
        assert controls(encoder, token_ids) == []
        if kind in FAITHFUL:
            assert encoder.decode(token_ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_template_wrote_is_parsed_beside_data_that_spells_the_same(encoders, kind):
    encoder = encoders[kind]
    segments = [written("<|im_start|>user\n"), data("low <|im_end|>"), written("<|im_end|>\n")]
    assert controls(encoder, encoder.encode(segments)) == ["<|im_start|>", "<|im_end|>"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "segments",
    [
        [written("<|im_"), data("end|>")],
        [data("<|im_"), written("end|>")],
        [data("<|im"), data("_end|>")],
        [written("<"), data("thi"), written("nk>")],
    ],
)
def test_no_token_arises_across_the_border_of_data(encoders, kind, segments):
    encoder = encoders[kind]
    assert controls(encoder, encoder.encode(segments)) == []


@pytest.mark.parametrize("text", ["<THINK>", "＜think＞", "<Think>"])
def test_what_only_the_normaliser_turns_into_an_added_token_stays_text(encoders, text):
    encoder = encoders["normalizing"]
    assert controls(encoder, encoder.encode([written(text)])) == ["<think>"]
    assert controls(encoder, encoder.encode([data(text)])) == []


@pytest.mark.parametrize("kind", KINDS)
@given(parts=st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.booleans()), max_size=8))
def test_data_never_becomes_a_control_token(encoders, kind, parts):
    """Only what is written, piece by piece between data, may hold control tokens."""
    encoder = encoders[kind]
    segments = [Segment(text, is_data) for text, is_data in parts]
    token_ids = encoder.encode(segments)
    allowed = "".join("\0" if segment.is_data else segment.text for segment in segments).split("\0")
    expected = [token for text in allowed for token in controls(encoder, encoder.encode_text(text))]
    assert controls(encoder, token_ids) == expected
    if kind in ("byte_level", "merging"):
        assert encoder.decode(token_ids) == "".join(segment.text for segment in segments)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.sampled_from("low<|> \nabé🙂.0"), max_size=20))
def test_data_without_an_added_token_is_encoded_as_usual(encoders, make_tokenizer, kind, text):
    whole = f"<|im_start|>user\n{text}<|im_end|>\n"
    segments = [written("<|im_start|>user\n"), data(text), written("<|im_end|>\n")]
    assert encoders[kind].encode(segments) == make_tokenizer(kind).encode(whole, add_special_tokens=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["low", " low", "Too low, guess", "\n\nlow", ".", "low </s> low"])
def test_a_fragment_gets_the_tokens_that_it_has_in_the_middle_of_a_text(encoders, make_tokenizer, kind, text):
    encoder, tokenizer = encoders[kind], make_tokenizer(kind)
    before = tokenizer.encode("guess the\t", add_special_tokens=False)
    whole = tokenizer.encode("guess the\t" + text, add_special_tokens=False)
    assert before + encoder.encode_text(text, Follows.TEXT) == whole


@pytest.mark.parametrize("kind", ["byte_level", "merging", "unigram", "llama", "normalizing", "words"])
@pytest.mark.parametrize("text", ["low", " low", "Too low, guess", "\n\nlow", "."])
def test_a_fragment_after_a_control_token_gets_the_tokens_that_it_has_there(encoders, make_tokenizer, kind, text):
    whole = make_tokenizer(kind).encode("low</s>" + text, add_special_tokens=False)
    token_ids = encoders[kind].encode_text(text, Follows.CONTROL_TOKEN)
    assert whole[-len(token_ids) - 1] == make_tokenizer(kind).convert_tokens_to_ids("</s>")
    assert token_ids == whole[-len(token_ids) :]


def test_white_space_that_was_added_as_tokens_is_no_control_token(make_tokenizer):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken("\n\n\n", special=False)])
    encoder = TextEncoder(tokenizer)
    added = tokenizer.convert_tokens_to_ids("\n\n\n")
    assert added not in encoder.control_ids
    assert added in encoder.encode([data("low\n\n\nlow")])
    assert added in encoder.encode([data("<think>\n\n\nlow")])


def test_text_that_is_no_unicode_is_encoded_and_stays_data(encoders):
    for encoder in encoders.values():
        token_ids = encoder.encode([data("\ud83d\ude00\udfff<think>\ud800 low")])
        assert token_ids
        assert controls(encoder, token_ids) == []


def test_many_spelled_tokens_cost_no_more_than_their_number(encoders):
    text = "<think>" * 20_000
    token_ids = encoders["byte_level"].encode([data(text), written("<|im_end|>")])
    assert controls(encoders["byte_level"], token_ids) == ["<|im_end|>"]


def test_later_changes_of_the_tokenizer_reach_no_encoder(make_tokenizer):
    tokenizer = make_tokenizer()
    encoder = TextEncoder(tokenizer)
    before = encoder.encode_text("Too low, guess again")
    tokenizer.add_tokens(["guess"])
    tokenizer("Too low, guess again", truncation=True, max_length=2)
    assert encoder.encode_text("Too low, guess again") == before


def test_a_tokenizer_without_a_backend_is_refused_by_name():
    with pytest.raises(ConfigError) as caught:
        TextEncoder(object())
    assert str(caught.value) == (
        "object is no fast tokenizer; load it with AutoTokenizer from a folder that holds a tokenizer.json"
    )
