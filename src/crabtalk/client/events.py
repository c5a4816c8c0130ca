"""The events of a stream, as the types a client matches on."""

from crabtalk.protocol import wire

Event = (
    wire.StreamStart
    | wire.StreamChunk
    | wire.StreamThinking
    | wire.ToolStartEvent
    | wire.ToolResultEvent
    | wire.ToolsCompleteEvent
    | wire.StreamEnd
    | wire.AskUserEvent
    | wire.UserSteeredEvent
    | wire.TextStartEvent
    | wire.TextEndEvent
    | wire.ThinkingStartEvent
    | wire.ThinkingEndEvent
    | wire.ContextUsageEvent
)
