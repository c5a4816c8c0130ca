"""The union of event types that a stream yields, for clients to match on."""

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
