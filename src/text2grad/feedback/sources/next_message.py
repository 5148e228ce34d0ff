"""The next message of a user as feedback on the answer before it, by a table of rules.

The kinds are those that people were seen to use in chats (arXiv 2407.10944): the same again, a correction, a complaint,
thanks. Follow-up questions and new tasks are none. The rules are in English. They read the first sentences of a
message, clause by clause, without what is not the user's own word: code, quotations, and texts to work on.
"""

import re
from collections.abc import Iterator
from functools import cache

READ_CHARACTERS, READ_SENTENCES, SENTENCE_CHARACTERS = 4_000, 2, 300  # of a message
SAME_SHARE, SAME_WORDS = 0.75, range(2, 40)  # a repeat has this share of an earlier message's words, and so many
SAME = "repeat: the same words"

# A name, and patterns, of which one fits a clause in lower case, without apostrophes and opening words such as "well".
# <words> are those of `_WORDS`. Questions and orders are read by rules with (asked), the whole message by (message).
_RULES = r"""
none: own slip  ^(?:a )?typo$|^i forgot\b|^my (?:bad|mistake|typo)\b
complaint: scolds (asked)  ^(?:ugh+|wtf|seriously|come on|argh+|meh|yikes)$|^(?:stop|quit) \w+ing\b
    \bthanks for nothing\b
    ^(?:are|do|did|can|have|could) you (?:even|actually|really) (?:read|listen|understand|look|try)
    ^are you (?:kidding|serious|dumb|stupid|broken)\b|^why (?:do|are|did) you (?:always|keep|still|even)\b
complaint: not wanted  \b<not> (?:at all |really )?what i\b|^im <very>(?:disappointed|frustrated|annoyed)
    ^i (?:really )?(?:<not> (?:really )?like|hate) (?:it|this|that|the|your|how)\b
    \b(?:version|one|answer|draft) (?:was|were) better$
complaint: does not work  ^(?:<it> |i )?still <not>\b|^nothing happen
    ^(?:\w+ ){0,3}<not> (?:even |really |seem to |actually )*(?:work|compil|run|help(?!ful)|make (?:any )?sense|exist)
    \bmakes? (?:no|zero) sense\b|^(?:still )?(?:the )?same (?:error|problem)
    ^traceback\b|^(?:now |still )*im? (?:now |still )*(?:get|got|getting|keep getting|see) .*(?:error|exception)\b
    ^(?:<it> )?(?:still |just |always )*(?:crash|freez|hang)e?s\b|^<it> (?:gives|throws|raises|fails|breaks)\b
complaint: what you did  <you><not> (?:answer|read|listen|follow|understand|finish)
    <you>(?:were )?(?:ignor|delet|remov|broke|lost|skipp|left out|cut|stopp|repeat|invent|hallucinat|made .* up$)
complaint: poor  ^<is> <very><bad>\b|^(?:what a )?<very><bad>(?: <thing>)?$|^(?:<is> )?<very>too \w+
    (?<!im )\b(?:not|isnt|wasnt) (?:that |at all |even )*<very><good>\b|\bsounds like an? (?:robot|machine|advert)\b
    ^(?:the|your) (?:\w+ ){1,2}(?:is|are|was|were) (?:still |all )*(?:dead|broken|missing|empty|off|gone|blank)$
    ^(?:(?:the|your) \w+|it|that|this) (?:leaves out|misses|lacks|omits|ignores|contradicts|has nothing to do with)\b
repeat: again (asked)  ^(?:\w+ )?(?:try|do|say|write|answer|tell|run)(?: it| that| this| me)? <again>(?: please)?$
    ^(?:<again> please|once more|one more time)$|^(?:regenerate|retry|redo)(?: it| that| this)?$
    ^my question (?:was|is)\b|^i (?:already )?asked (?:if|who|what|when|where|why|how)\b
    ^answer(?: (?:my|the) question)?$|^(?:ill |i )(?:ask|repeat)(?: again| once more)?$
correction: no (message)
    ^(?:no|nope|nah)\b(?!\W+(?:problem|worries|idea|thanks|thank|need|rush|matter|more|complaints?|doubt|one)\b)
correction: meant  ^i (?:actually |really |only |just |clearly |never |already )*(?:meant|wanted)(?! to\b)
    \bi (?:never |already |clearly )?(?:was (?:asking|talking) about|asked (?:for|about|you)|said|told you|specified)\b
    \bi did(?:nt| not) (?:say|mean|ask|want|write)\b
correction: wrong  ^(?:<wrong>|close|almost|not (?:quite|really))$|^(?:<is>|youre|your|you are) <very><wrong>\b(?! to\b)
    \b(?:is|are|was|were) (?:<wrong>|off)$|^<it> <not> (?:\w+ )?<very>(?:right|correct|true)\b|\bexcept (?:that|for)\b
correction: should be  ^(?:they|s?he|it|that) (?:should|was supposed to|ought to) (?:be|have been)\b(?! able)
    ^(?:it|that|this) (?:should|must|needs? to|has to|was supposed to) (?:return|say|read|end|start|begin)\b
correction: mistake
    <you>(?:got|mix|confus|misunderst|misread|misspel|mistook|miss|forg[eo]t|used the wrong|miscount|miscalculat|swapp)
    \b(?:theres|there (?:is|are)|i (?:see|found|spotted|noticed)|you made|you have|contains?|has) <very>(?:\w+ )?<slip>
    ^<slip> in (?:your|the|line)\b|^correction$|^(?:revise|correct|fix) your (?:answer|code|response)\b|\bre.?read\b
    ^(?:look|check|count) (?:\w+ )*again$
correction: not this
    ^not (?!yet|sure|now|right|bad|today|much|really|necessarily)(?:the |an? |in |on |by )?[\w.]+(?: \w+)?$
correction: in fact (asked)
    ^(?:actually|in fact) (?:its|the|that|this|it|he|she|they|there|my|your|\w+ (?:is|was|are|were))\b
    ^(?:it|s?he|that|this)s? (?:is|are|was|were)(?:nt| not)\b|^(?:was|were|should)nt (?:it|that|he|she|they)\b
thanks: thanks  \bthank you enough\b
    ^(?:\w+ )?(?:many )?(?:thanks?|thx|tnx|ty|cheers)\b(?!(?: you)? (?:letter|card|note|speech|e?mail|in adv))
thanks: praise  ^(?:<is>|youre|you are) <very>(?:<good>|right|correct|best|life ?saver|genius|star)(?: now| indeed)?$
    \bnailed\b|^(?:\w+ )?<fine>$|^(?:what an? )?(?:\w+ )?<good> <thing>$|^(?:much|so|way|very|really) <good>$
    ^(?:well done|not bad|spot on)\b
thanks: a good word (message)  ^<good>\W*$
thanks: works
    ^(?:<it> )?(?:finally |now |all )*(?:works|worked|fixed it|solved it|did it|did the trick|helped|helps)(?: \w+)?$
thanks: likes
    ^(?:i|my \w+) (?:really |just |absolutely )?(?:lov|lik|ador)(?:e|ed|es) (?:it|this|that|the \w+ you|your)\b
    ^(?:i )?(?:really )?appreciate\b|^love (?:it|this|that)\b|\bwhat i (?:needed|wanted|was (?:looking|hoping) for)$
    ^i (?:finally |now )?(?:get|understand) it\b|\bmakes (?:\w+ )?sense\b
none: goes on (message)  ^\W*(?:please )?(?:continue|keep|go on|more|next|another|proceed)\b
"""
_IT = r"it|that|this|(?:the|your) \w+(?: \w+)?"
_FINE = "perfect|awesome|excellent|amazing|brilliant|fantastic|wonderful|superb|incredible|flawless"
_WORDS = {
    "it": _IT,
    "is": rf"its|thats|theyre|(?:{_IT}|these|those) (?:is|are|was|were|looks?|sounds?|feels?|reads)",
    "very": "(?:(?:an?|the|so|very|really|just|still|also|all|way|far|much|pretty|quite|absolutely|totally|such) )*",
    "fine": _FINE,
    "good": f"{_FINE}|great|good|nice|cool|lovely|beautiful|helpful|useful|hilarious|funny|clear|neat|better|fun",
    "thing": "(?:answer|job|work|one|bot|list|idea|poem|story|point|explanation|stuff|advice|summary|code)s?",
    "bad": "useless|terrible|awful|horrible|bad|boring|generic|vague|confusing|stupid|nonsense|garbage|rubbish|crap|"
    "dumb|disappointing|ugly|robotic|unhelpful|unreadable|lame|ridiculous|worse|pointless|sloppy|gibberish",
    "wrong": "wrong|incorrect|false|inaccurate|untrue|mistaken|not (?:quite )?(?:right|correct|true|accurate)",
    "again": "again|over|once more|one more time",
    "slip": r"(?:error|mistake|typo|bug)s?\b",
    "you": r"^you (?:have |ve |are |re |just |also |still |only |keep |kept |always |completely |simply )*",
    "not": "(?:does|do|did|wo|is|was|ca|has|have)(?:nt| not)|not|never|cannot",
}
_QUOTED = re.compile(
    r"(?s:```.*?(?:```|\Z))|`[^`\n]*`|\"[^\"\n]*\"|“[^”\n]*”|«[^»\n]*»|(?<!\w)'[^'\n]*'(?!\w)|(?m:^>.*$)"
)
_GIVEN = re.compile(  # behind the colon stands what others said, or a text to work on
    r"^[^:]{0,200}\b(?:translate|summari[sz]e|classify|fix|correct|edit|proofread|rewrite|rephrase|paraphrase|continue|"
    r"reply|analy[sz]e|convert|review|following|says?|said|shouts?|writes?|wrote|asks?|this)\b[^:]{0,100}:(?=\s)"
)
_REPLY = re.compile(r"^\W*(?:no|nope|nah|yes|yeah|yep|thats (?:right|correct)|correct|right|exactly)\b\W*")
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|\n+")
_CLAUSE = re.compile(r"[,;:.!?…()]+(?:\s+|$)|\s+[-–—]+\s+|\b(?:but(?! not)|though|however)\b")
_OPENING = re.compile(
    r"^(?:(?:h+m+|u[hm]+|oh|ah|well|ok|okay|so|and|yes|yeah|yep|sorry|hey|wow|(?:ha)+|lol|please|now|then|"
    r"unfortunately|i (?:think|believe|guess|fear))\b\s*)+"
)
_OTHERS = re.compile(r"^(?:he|she|they|my \w+|an? \w+|someone|people) (?:said|says?|told|thinks?|claims?|wrote)\b")
_ORDER = re.compile(
    r"^(?:how|what(?! an? )|who|whom|whose|when|where|why|which|can|could|would|will|is|are|do|does|did|should|shall|"
    r"if|may|suppose|assume|write|make|give|create|translate|summari[sz]e|explain|list|tell|show|add|draw|draft|plan|"
    r"find|compare|describe|suggest|help|fix|use|include|expand|combine|classify|rewrite|convert|generate|pretend|"
    r"(?:in the )?next|lets?|continue|imagine|name|sort|shorten|change|remove|improve|answer)\b"
)
_SMALL = re.compile(  # words that do not tell two requests apart
    r"\b(?:an?|the|of|in|on|at|to|for|from|by|with|is|are|was|were|be|s|do|does|did|can|could|would|will|you|i|me|my|we|"
    r"us|it|this|that|these|those|and|or|but|so|if|then|as|please|just|again|once|more|ok|now|what|how|who|which)\b"
)


@cache
def rules() -> list[tuple[str, str, re.Pattern[str]]]:
    """Return name, what it reads, and pattern of each rule, in the order in which they are tried; the first counts."""
    return [
        (name, reads, re.compile(re.sub("<([a-z]+)>", lambda it: f"(?:{_WORDS[it[1]]})", re.sub("\n +", "|", lines))))
        for name, reads, lines in re.findall(r"(?m)^(\w+: [\w ]+?)(?: \((\w+)\))?(?:  |\n +)(.*(?:\n +.*)*)", _RULES)
    ]


def rule_of(message: str, asked: str = "", answer: str = "") -> str:
    """Return the name of the rule by which a message is feedback on the answer before it; "" if it is none.

    Args:
        message: the user's words.
        asked: the message of the user before.
        answer: what stands between the two; behind a question, "no" is a reply.

    Example:
        >>> rule_of("No, I meant the band."), rule_of("No, add the times.", answer="Shall I add restaurants?")
        ('correction: no', '')
    """
    text = _QUOTED.sub(" ", message[:READ_CHARACTERS].replace("’", "'")).lower().replace("'", "").strip()
    text = given[0] if (given := _GIVEN.match(text)) else text
    text = _REPLY.sub("", text) if answer.rstrip().endswith("?") else text
    clauses = list(_clauses(text))
    for name, reads, pattern in rules():
        behind = "behind" if name.startswith("correction") else ""  # a request that ends with thanks praises nothing
        read = [clause for clause, state in clauses if state in ("", behind) or reads]
        if any(map(pattern.search, [text] if reads == "message" else read)):
            return "" if name.startswith("none") else name
    own, words = _beginnings(message), _beginnings(asked)
    return SAME if own <= words and len(own) in SAME_WORDS and len(own) >= SAME_SHARE * len(words) else ""


def _clauses(text: str) -> Iterator[tuple[str, str]]:
    """Yield the clauses of a text without opening words: "asked" marks questions and orders, "behind" what follows."""
    behind = ""
    for sentence in _SENTENCE.split(text)[:READ_SENTENCES]:
        for part in filter(None, map(str.strip, _CLAUSE.split(sentence[:SENTENCE_CHARACTERS]))):
            clause = _OPENING.sub("", part)
            if _OTHERS.match(clause):
                break
            asked = _ORDER.match(clause) or (sentence.endswith("?") and sentence.rstrip("?").endswith(part))
            yield clause, "asked" if asked else behind
            behind = "behind" if asked else behind


def _beginnings(text: str) -> set[str]:
    """Return the numbers of a text, and the beginnings of its words without the commonest ones."""
    words = re.findall(r"\d+|\w\w+", _SMALL.sub(" ", text[:READ_CHARACTERS].lower()))
    return {word if word.isdigit() else word[:4] for word in words}
