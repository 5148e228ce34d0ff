from .critic import Critic as Critic, annotate as annotate, ask as ask, check_examples as check_examples
from .critique_text import (
    is_json as is_json,
    parse_critique as parse_critique,
    parse_critique_object as parse_critique_object,
)
from .examples import (
    Demonstration as Demonstration,
    digest_of_examples as digest_of_examples,
    read_demonstrations as read_demonstrations,
    read_examples as read_examples,
    to_example as to_example,
    write_examples as write_examples,
)
from .export import DATA_FILE as DATA_FILE, write_folder as write_folder
from .lenient_json import CutObject as CutObject, printable as printable, read_objects as read_objects
from .process_state import kept_process as kept_process
from .quotes import is_finite as is_finite
from .reasoning import answer_parts as answer_parts, without_reasoning as without_reasoning
from .record_files import (
    WAY_OUT as WAY_OUT,
    Entry as Entry,
    bad_record as bad_record,
    json_object as json_object,
    keys_of as keys_of,
    read_entries as read_entries,
    refuse_half_pairs as refuse_half_pairs,
)
from .records import (
    STORES as STORES,
    TOMBSTONES as TOMBSTONES,
    Annotation as Annotation,
    CritiqueRecord as CritiqueRecord,
    annotation_to_json as annotation_to_json,
    critique_from_json as critique_from_json,
    critique_to_json as critique_to_json,
    item_of as item_of,
    mark_of as mark_of,
    read_annotations as read_annotations,
    read_critique_records as read_critique_records,
    read_store as read_store,
    read_tombstones as read_tombstones,
    response_of as response_of,
    take_marks as take_marks,
    write_annotations as write_annotations,
)
from .sources import read_source as read_source
from .spans import (
    Match as Match,
    count_places as count_places,
    critique_from_text as critique_from_text,
    locate_critique as locate_critique,
    locate_spans as locate_spans,
)
from .splits import hold_out as hold_out, split_by_prompt as split_by_prompt
from .turns import (
    content_of as content_of,
    flat_spans as flat_spans,
    in_turns as in_turns,
    numbered as numbered,
    sampled_texts as sampled_texts,
    turns_to_json as turns_to_json,
    with_thoughts as with_thoughts,
    without_thoughts as without_thoughts,
)
from .user_code import described as described, load_callable as load_callable
from .votes import check_votes as check_votes, vote as vote
from .words import (
    StepRule as StepRule,
    inside_word as inside_word,
    split_steps as split_steps,
    whole_words as whole_words,
    words_of as words_of,
)
